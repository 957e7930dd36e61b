"""Which engine answers, told by its list of models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contextpilot_integrations.engines.engine import LLAMA_CPP, PLAIN, SGLANG, VLLM, Engine
from contextpilot_integrations.engines.fields import get_count, get_field

__all__ = ["Server", "identify"]

_OWNERS = {"vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMA_CPP}


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of a server.

    Attributes:
        engine: The engine that it runs.
        context_window: How many tokens of prompt and answer fit; None where it does not tell.
        adapter: The LoRA adapter that the model's name stands for; None where it is no adapter.
    """

    engine: Engine = PLAIN
    context_window: int | None = None
    adapter: str | None = None


def identify(models: Iterable[object], model: str) -> Server:
    """Tell a server by the models that it lists.

    Each engine writes its own name into ``owned_by``, and the window beside it: vLLM and SGLang as
    ``max_model_len``, llama.cpp as ``meta.n_ctx``. The list is a part of OpenAI's API and passes through
    routers, so no server is asked for an address that it does not have, as ``/version`` (vLLM),
    ``/get_model_info`` (SGLang) and ``/props`` (llama.cpp) would be.

    Args:
        models: The ``data`` of ``GET /v1/models``: mappings, or objects of the openai client.
        model: The model that will be asked; where it is not listed, the others tell the engine if they agree.

    Returns:
        The server; a plain one where nothing is recognised.
    """
    listed = list(models)
    asked = [card for card in listed if get_field(card, "id") == model]
    owners = {str(get_field(card, "owned_by")) for card in asked or listed}
    engine = _OWNERS.get(owners.pop(), PLAIN) if len(owners) == 1 else PLAIN
    if not asked:
        return Server(engine)
    # vLLM and SGLang list an adapter as a model whose parent is the one that it adapts.
    return Server(engine, _window(asked[0]), model if get_field(asked[0], "parent") else None)


def _window(card: object) -> int | None:
    return get_count(card, "max_model_len") or get_count(get_field(card, "meta"), "n_ctx") or None
