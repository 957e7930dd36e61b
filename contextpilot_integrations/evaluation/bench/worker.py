"""The process in which a benchmark measures, so that its peak memory is what planning takes.

Run as a file, by this interpreter or by one that has the published package `contextpilot`; nothing but
the package that is measured is imported. A job comes as JSON on standard input, what was measured goes
out as JSON on standard output.

Both packages are measured by the same clock, around the same call: contexts in, orders out. What stands
outside the clock: importing, making the inputs, unpacking the orders, and for a batch one of two contexts
beforehand, so that nothing is loaded on the way. The garbage collector runs as in any program.
"""

import gc
import json
import os
import resource
import signal
import sys
import threading
import time
from functools import partial
from importlib import metadata
from typing import Any, Protocol


class _Subject(Protocol):
    """A package to measure. Only `batch` and `request` are timed; an object serves one measurement."""

    def batch_input(self, contexts: list[list[int]]) -> Any:
        """Return the contexts as `batch` takes them."""

    def batch(self, contexts: Any) -> Any:
        """Plan a batch."""

    def batch_orders(self, planned: Any) -> list[list[int]]:
        """Return the blocks of each request in the order to send, in execution order."""

    def request_input(self, context: list[int]) -> Any:
        """Return the context as `request` takes it."""

    def request(self, context: Any) -> Any:
        """Plan one request, which is then stored."""

    def order(self, planned: Any) -> list[int]:
        """Return the blocks of a request in the order to send."""


class _Ours:
    """This package: `ContextPilot.prepare_batch` and `prepare`."""

    def __init__(self, device: str, window: int | None) -> None:
        from contextpilot_integrations import ContextBlock, ContextPilot, alignment, pilot

        if window is not None:
            # The pilot has no such setting, since its default serves. Only here it is varied, to show so.
            pilot.align_batch = partial(alignment.align_batch, window=window)  # type: ignore[attr-defined]
        self._block = ContextBlock
        self._pilot = ContextPilot(capacity=None, device=device, on_error="raise")

    def batch_input(self, contexts: list[list[int]]) -> Any:
        """One object a block, as where they come from one corpus."""
        blocks = {block: self._block(block) for context in contexts for block in context}
        return [[blocks[block] for block in context] for context in contexts]

    def batch(self, contexts: Any) -> Any:
        return self._pilot.prepare_batch(contexts)

    def batch_orders(self, planned: Any) -> list[list[int]]:
        return [self.order(planned.plans[place]) for place in planned.schedule]

    def request_input(self, context: list[int]) -> Any:
        """New objects for every request, of which nothing is worked out yet."""
        return [self._block(block) for block in context]

    def request(self, context: Any) -> Any:
        return self._pilot.prepare(context)

    def order(self, planned: Any) -> list[int]:
        return list(planned.block_ids)


class _Published:
    """The published package, by what it documents: `ContextPilot.reorder` builds cold, and then grows."""

    def __init__(self) -> None:
        import contextpilot

        self._pilot = contextpilot.ContextPilot(use_gpu=False)

    def batch_input(self, contexts: list[list[int]]) -> Any:
        return [list(context) for context in contexts]

    def batch(self, contexts: Any) -> Any:
        return self._pilot.reorder(contexts)

    def batch_orders(self, planned: Any) -> list[list[int]]:
        return [[int(block) for block in context] for context in planned[0]]

    def request_input(self, context: list[int]) -> Any:
        return [list(context)]

    def request(self, context: Any) -> Any:
        return self._pilot.reorder(context)

    def order(self, planned: Any) -> list[int]:
        return self.batch_orders(planned)[0]


def subject(job: dict[str, Any]) -> _Subject:
    """Return what the job measures, fresh."""
    return _Published() if job["published"] else _Ours(job["device"], job["window"])


def build(job: dict[str, Any]) -> dict[str, Any]:
    """Measure planning a batch that is cold."""
    first = subject(job)
    first.batch(first.batch_input(job["contexts"][:2]))
    measured = subject(job)
    contexts = measured.batch_input(job["contexts"])
    gc.collect()
    processor, start = sum(os.times()[:4]), time.perf_counter_ns()
    planned = measured.batch(contexts)
    seconds = (time.perf_counter_ns() - start) / 1e9
    figures = {
        "seconds": seconds,
        "cpu_seconds": sum(os.times()[:4]) - processor,
        "peak_mib": peak_mib(),
    }
    return {**figures, "orders": measured.batch_orders(planned)}


def online(job: dict[str, Any]) -> dict[str, Any]:
    """Measure every request of a stream, until one fails or the patience (seconds) is over."""
    measured = subject(job)
    nanoseconds: list[int] = []
    orders: list[list[int]] = []
    failure = None
    end = time.monotonic() + job["patience"]
    gc.collect()
    for context in job["contexts"]:
        given = measured.request_input(context)
        start = time.perf_counter_ns()
        try:
            planned = measured.request(given)
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            break
        nanoseconds.append(time.perf_counter_ns() - start)
        orders.append(measured.order(planned))
        if time.monotonic() > end:
            failure = f"stopped after {job['patience']} s"
            break
    return {"nanoseconds": nanoseconds, "orders": orders, "failure": failure, "peak_mib": peak_mib()}


def version(job: dict[str, Any]) -> dict[str, Any]:
    """Return the version of the published package, after making sure that it can be used."""
    subject(job)
    return {"version": metadata.version("contextpilot")}


def peak_mib() -> float:
    """Return the most memory that this process has had in RAM, in MiB; its own child processes aside.

    `ru_maxrss` would do, but on Linux a process starts with its parent's peak in it.
    """
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    except (OSError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def end_with_parent(lifeline: int) -> None:
    """Wait until the parent closes its end of a pipe, then end, with all processes started here."""
    os.read(lifeline, 1)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Do the job. Whatever a measured package prints goes nowhere."""
    threading.Thread(target=end_with_parent, args=(int(sys.argv[1]),), daemon=True).start()
    job = json.load(sys.stdin)
    task = {"build": build, "online": online, "version": version}[job["task"]]
    with os.fdopen(os.dup(1), "w") as answer:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        json.dump(task(job), answer)


if __name__ == "__main__":
    main()
