"""Running a chain over a planned batch: in the order of the plan, with the results in the order given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from langchain_core.documents import Document
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import get_config_list

from contextpilot_integrations.langchain.documents import plan_metadata

__all__ = ["arun_scheduled", "run_scheduled"]

Input = TypeVar("Input")
Output = TypeVar("Output")


def run_scheduled(
    chain: Runnable[Input, Output],
    inputs: Sequence[Input],
    config: RunnableConfig | list[RunnableConfig] | None = None,
    *,
    return_exceptions: bool = False,
) -> list[Output]:
    """Run a chain over inputs as ``chain.batch`` does, but in the order that `ContextPilotAligner` planned.

    ::

        contexts = (retriever | aligner).batch(questions)
        inputs = [{"question": q, "context": c} for q, c in zip(questions, contexts)]
        answers = run_scheduled(chain, inputs)

    Inputs whose turn is not known, such as those with an empty context, run last.

    Args:
        chain: What follows the aligner, formatting and model included.
        inputs: Each a list of aligned documents, or a mapping that holds one.
        config: As for ``batch``, but one at a time unless it sets ``max_concurrency``: of requests sent all
            at once, none finds what the others are about to cache.
        return_exceptions: Whether an input's failure is returned in its place rather than raised.

    Returns:
        The results in the order of ``inputs``.

    Raises:
        ValueError: If no input with documents has a turn, or one has two.
    """
    order = _execution_order(inputs)
    configs = _in_order(config, order)
    results = chain.batch([inputs[place] for place in order], configs, return_exceptions=return_exceptions)
    return _in_input_order(results, order)


async def arun_scheduled(
    chain: Runnable[Input, Output],
    inputs: Sequence[Input],
    config: RunnableConfig | list[RunnableConfig] | None = None,
    *,
    return_exceptions: bool = False,
) -> list[Output]:
    """Run a chain over inputs as ``chain.abatch`` does, but in the order of the plan; see `run_scheduled`.

    After a failure LangChain's ``abatch`` runs the other inputs to their end in the background.
    """
    order = _execution_order(inputs)
    configs = _in_order(config, order)
    results = await chain.abatch(
        [inputs[place] for place in order], configs, return_exceptions=return_exceptions
    )
    return _in_input_order(results, order)


def _execution_order(inputs: Sequence[Any]) -> list[int]:
    turns = [_turn(place, given) for place, given in enumerate(inputs)]
    if all(turn is None for turn in turns) and not all(map(_is_empty_context, inputs)):
        raise ValueError(
            "no input holds documents that ContextPilotAligner.batch planned; "
            "pass the documents themselves and format them inside the chain"
        )
    return sorted(range(len(inputs)), key=lambda place: (turns[place] is None, turns[place] or 0))


def _turn(place: int, given: Any) -> int | None:
    turns = {
        entry["schedule_position"]
        for value in _values(given)
        if isinstance(value, list | tuple)
        for document in value
        if isinstance(document, Document) and (entry := plan_metadata(document))
    } - {None}
    if len(turns) > 1:
        raise ValueError(f"inputs[{place}] holds documents of {len(turns)} requests of a batch; keep to one")
    return next(iter(turns), None)


def _is_empty_context(given: Any) -> bool:
    return any(isinstance(value, list | tuple) and not value for value in _values(given))


def _values(given: Any) -> list[Any]:
    return list(given.values()) if isinstance(given, Mapping) else [given]


def _in_order(
    config: RunnableConfig | list[RunnableConfig] | None, order: Sequence[int]
) -> list[RunnableConfig]:
    configs = get_config_list(config, len(order))
    return [{"max_concurrency": 1, **configs[place]} for place in order]


def _in_input_order(results: Sequence[Output], order: Sequence[int]) -> list[Output]:
    by_place = dict(zip(order, results, strict=True))
    return [by_place[place] for place in range(len(order))]
