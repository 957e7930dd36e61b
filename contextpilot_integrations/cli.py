"""The `contextpilot` command."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from contextpilot_integrations import bench_cli
from contextpilot_integrations.chat_request import CALLERS_FIELD, ChatRequest
from contextpilot_integrations.console import Json, bad_input, show
from contextpilot_integrations.conversation import rewrite as rewrite_messages
from contextpilot_integrations.evaluation.analysis import analyze as analyze_trace
from contextpilot_integrations.evaluation.jsonl import Record, check_output, read_records, write_jsonl
from contextpilot_integrations.evaluation.prompt import build_prompt, count_tokens, tokenize
from contextpilot_integrations.evaluation.simulator import parse_capacity, simulate_tokens
from contextpilot_integrations.evaluation.simulator import simulate as simulate_blocks
from contextpilot_integrations.evaluation.traces import PlanLine, TraceRequest, read_plan, read_trace
from contextpilot_integrations.pilot import ContextPilot, estimate_tokens
from contextpilot_integrations.plan import Plan
from contextpilot_integrations.rewriting_report import report_rewriting

__all__ = ["app"]

app = typer.Typer(
    help="Context reuse for LLM applications: plan prompts so that the engine's prefix cache hits.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(bench_cli.app, name="bench")


class Mode(StrEnum):
    """How a trace is planned."""

    offline = "offline"
    online = "online"


class Unit(StrEnum):
    """What a simulated cache counts."""

    blocks = "blocks"
    tokens = "tokens"


Blocks = Annotated[str | None, typer.Option(metavar="BLOCKS.jsonl", help='The texts, {"id", "text"} a line.')]


@app.command()
def align(
    trace: Annotated[str, typer.Argument(metavar="TRACE.jsonl", help='Requests to plan; "-" is stdin.')],
    output: Annotated[str, typer.Option("--output", "-o", metavar="PLAN.jsonl", help='"-" is stdout.')],
    mode: Annotated[
        Mode, typer.Option(help="The whole batch at once, or one request after another.")
    ] = Mode.offline,
    warm: Annotated[
        str | None, typer.Option(metavar="TRACE0.jsonl", help="Requests served before, one after another.")
    ] = None,
    blocks: Blocks = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="N|N%", help="What the index keeps: blocks, or a share of all read.")
    ] = None,
    max_displacement: Annotated[
        int | None, typer.Option(metavar="N", help="How many places a block may end up away from its rank.")
    ] = None,
) -> None:
    """Plan each request of a trace, and write the plan in execution order.

    Every line is a request of its own: sessions and turns are ignored. With --blocks a block's worth is
    its length in tokens, and the capacity stands for so many blocks of average length.
    """
    with bad_input():
        check_output(output, trace, warm, blocks)
        before = [] if warm is None else read_trace(warm, blocks)
        requests = read_trace(trace, blocks)
        pilot = ContextPilot(
            capacity=_index_capacity(capacity, [*before, *requests]),
            max_displacement=max_displacement,
            on_error="raise",
        )
        for request in before:
            pilot.prepare(request.blocks)
        if mode is Mode.offline:
            contexts = [request.blocks for request in requests]
            batch = pilot.prepare_batch(contexts, show_progress=True)
            plans = [(place, batch.plans[place]) for place in batch.schedule]
        else:
            plans = [(place, pilot.prepare(request.blocks)) for place, request in enumerate(requests)]
        write_jsonl(output, (_plan_line(requests[place], place, plan).to_dict() for place, plan in plans))


@app.command()
def simulate(
    plan: Annotated[str, typer.Argument(metavar="PLAN.jsonl", help='A plan or a trace; "-" is stdin.')],
    capacity: Annotated[
        str | None, typer.Option(metavar="N|N%", help="The cache's size in units, or a share of all sent.")
    ] = None,
    unit: Annotated[
        Unit, typer.Option(help="Blocks, or tokens of the whole prompt in pages of 16.")
    ] = Unit.blocks,
    blocks: Blocks = None,
    as_json: Json = False,
) -> None:
    """Serve a plan from a simulated prefix cache that drops the least recently used leaf first."""
    with bad_input():
        if unit is Unit.tokens and blocks is None:
            raise ValueError("--unit tokens needs --blocks, the texts to count")
        lines = read_plan(plan, blocks)
        if unit is Unit.blocks:
            sent = [line.blocks for line in lines]
            result = simulate_blocks(sent, parse_capacity(capacity, sum(map(len, sent))))
        else:
            prompts = [
                tokenize(build_prompt(line.blocks, query=line.query, order_annotation=line.order_annotation))
                for line in lines
            ]
            result = simulate_tokens(prompts, parse_capacity(capacity, sum(map(len, prompts))))
        figures = {
            "hit_ratio": result.hit_ratio,
            "hits": result.hits,
            unit.value: result.total,
            "capacity": result.capacity,
            "unit": unit.value,
        }
    show(figures, as_json)


@app.command()
def analyze(
    trace: Annotated[str, typer.Argument(metavar="TRACE.jsonl", help='Requests to look at; "-" is stdin.')],
    as_json: Json = False,
) -> None:
    """Measure a trace: how often blocks come back, and how much of that a prefix cache could use."""
    with bad_input():
        figures = analyze_trace(read_trace(trace)).to_dict()
    show(figures, as_json)


@app.command()
def rewrite(
    messages: Annotated[
        str, typer.Argument(metavar="MESSAGES.jsonl", help='Requests with "messages"; "-" is stdin.')
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="OUT.jsonl", help='"-" is stdout.')],
) -> None:
    """Write chat requests as they would be sent: aligned, and nothing twice that the model can see.

    Requests of one conversation come in their order. All other fields of a body stay as they are. Its field
    "contextpilot" may hold "blocks", a list of {"id", "text"} whose texts stand in the new messages, and a
    "tenant"; a report takes its place: tokens before and after, what was replaced, and where each stands.
    """
    with bad_input():
        check_output(output, messages)
        requests = [(record.fields, _chat_request(record)) for record in read_records(messages)]
        pilot = ContextPilot(token_counter=count_tokens, on_error="raise")
        write_jsonl(output, (_rewritten(body, request, pilot) for body, request in requests))


@app.command()
def demo(
    base_url: Annotated[
        str | None, typer.Option(metavar="URL", help="An OpenAI-compatible server to use.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name on that server.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the picture.")] = Path("."),
) -> None:
    """Answer 40 questions three times on a real model: original order, longest prefix first, and ours."""
    with bad_input():
        if (base_url is None) != (model is None):
            raise ValueError("--base-url and --model go together")
        from contextpilot_integrations.demo.requirements import require_all

        require_all()
        from contextpilot_integrations.demo.run import run_demo

        run_demo(base_url=base_url, model=model, output=output)


def _index_capacity(capacity: str | None, requests: list[TraceRequest]) -> int | None:
    """Return the index's capacity, in tokens where the blocks have texts."""
    blocks = [block for request in requests for block in request.blocks]
    count = parse_capacity(capacity, len(blocks))
    if count is None or not blocks:
        return None
    if count < 1:
        raise ValueError(f"--capacity {capacity} is 0 blocks; the index needs room for 1 at least")
    tokens = sum(estimate_tokens(block.text) if block.text else 1 for block in blocks)
    return max(1, count * tokens // len(blocks))


def _chat_request(record: Record) -> ChatRequest:
    try:
        return ChatRequest.from_body(record.fields)
    except ValueError as error:
        raise record.error(str(error)) from error


def _rewritten(body: Mapping[str, Any], request: ChatRequest, pilot: ContextPilot) -> dict[str, Any]:
    rewriting = rewrite_messages(
        request.messages, pilot=pilot, namespace=request.namespace, blocks=request.blocks
    )
    report = report_rewriting(request.messages, rewriting, count_tokens)
    return {**body, "messages": rewriting.messages, CALLERS_FIELD: report.to_dict()}


def _plan_line(request: TraceRequest, position: int, plan: Plan) -> PlanLine:
    return PlanLine(
        query_id=request.query_id,
        position=position,
        blocks=plan.blocks,
        search_path=plan.search_path,
        expected_cached_blocks=plan.expected_cached_blocks,
        order_annotation=plan.order_annotation,
        query=request.query,
    )
