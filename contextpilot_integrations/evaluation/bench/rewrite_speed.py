"""How long rewriting takes: beside a plain loop over lines, in a later turn, in long conversations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import blake2b
from time import perf_counter_ns
from typing import Any

from contextpilot_integrations.conversation import rewrite
from contextpilot_integrations.edits import Message
from contextpilot_integrations.pilot import ContextPilot

__all__ = ["RewriteSpeed", "bench_rewrite_speed"]

_CHARACTERS = 100_000
_LINE = 75
_RUNS = 5


@dataclass(frozen=True, slots=True)
class RewriteSpeed:
    """Milliseconds, each the best of five runs on texts of their own, by a pilot that remembers nothing.

    Attributes:
        first_ms: A file of 100,000 characters, in lines of 75 that are all different.
        hash_ms: A plain loop that hashes each of its lines with blake2b.
        later_ms: The same conversation, one answer and one question later, by the pilot that saw it before.
        messages_200_ms: A conversation of 200 messages, with 10 such lines in every fourth.
        messages_2000_ms: Ten times as many.
    """

    first_ms: float
    hash_ms: float
    later_ms: float
    messages_200_ms: float
    messages_2000_ms: float

    def to_dict(self) -> dict[str, Any]:
        """Return the figures under their names, and what they are by one another."""
        return {
            **asdict(self),
            "first_by_hash": self.first_ms / self.hash_ms,
            "later_by_first": self.later_ms / self.first_ms,
            "messages_2000_by_200": self.messages_2000_ms / self.messages_200_ms,
        }


def bench_rewrite_speed() -> RewriteSpeed:
    """Measure, in the same run."""
    runs = [_run(f"run {number}") for number in range(_RUNS)]
    return RewriteSpeed(*map(min, zip(*runs, strict=True)))


def _run(seed: str) -> tuple[float, ...]:
    pilot = ContextPilot(on_error="raise")
    text = _text(_CHARACTERS, seed)
    messages = _turn(0, text)[:3]
    later = [*messages, {"role": "assistant", "content": "Done."}, {"role": "user", "content": "And now?"}]
    first_ms = _milliseconds(lambda: rewrite(messages, pilot=pilot))
    hash_ms = _milliseconds(lambda: _hash_lines(text))
    later_ms = _milliseconds(lambda: rewrite(later, pilot=pilot))
    return first_ms, hash_ms, later_ms, _conversation_ms(200, seed), _conversation_ms(2000, seed)


def _conversation_ms(length: int, seed: str) -> float:
    turns = [_turn(number, _text(10 * _LINE, f"{seed}, {length}, {number}")) for number in range(length // 4)]
    messages, pilot = [message for turn in turns for message in turn], ContextPilot(on_error="raise")
    return _milliseconds(lambda: rewrite(messages, pilot=pilot))


def _turn(number: int, text: str) -> list[Message]:
    function = {"name": "read_file", "arguments": f'{{"path": "file_{number}.txt"}}'}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "user", "content": f"Read file {number}."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": text},
        {"role": "assistant", "content": f"File {number} is read."},
    ]


def _text(characters: int, seed: str) -> str:
    lines = -(-characters // _LINE)
    digests = [blake2b(f"{seed}, {number}".encode(), digest_size=37).hexdigest() for number in range(lines)]
    return "".join([f"{digest}\n" for digest in digests])[:characters]


def _hash_lines(text: str) -> None:
    for line in text.splitlines():
        blake2b(line.encode(), digest_size=16).digest()


def _milliseconds(work: Callable[[], object]) -> float:
    start = perf_counter_ns()
    work()
    return (perf_counter_ns() - start) / 1e6
