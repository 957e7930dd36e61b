"""Running the worker: in a fresh process, on this interpreter or on one with the published package."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["PATIENCE", "Interpreter", "MeasurementError", "measure", "published_package"]

PATIENCE = 900
"""How many seconds the published package has for one measurement."""

_WORKER = Path(__file__).with_name("worker.py")


class MeasurementError(RuntimeError):
    """A measurement that came to no end; the message says why."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python interpreter that has the published package.

    Attributes:
        python: Its path, or its name on the search path.
        version: The package's version.
    """

    python: str
    version: str


def published_package(python: str) -> Interpreter:
    """Make sure that an interpreter has the published package.

    Raises:
        ValueError: If there is no such interpreter, or the package cannot be used there.
    """
    try:
        answer = measure("version", [], against=Interpreter(python, ""))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"--against: cannot run {python!r} as a Python interpreter: {reason}") from error
    except MeasurementError as error:
        raise ValueError(
            f"--against: {python} cannot use the published package contextpilot ({error}); "
            "`make peer` builds an interpreter that can: .venv-peer/bin/python"
        ) from error
    return Interpreter(python, answer["version"])


def measure(
    task: str,
    contexts: Sequence[Sequence[int]],
    *,
    against: Interpreter | None = None,
    device: str = "cpu",
    window: int | None = None,
) -> dict[str, Any]:
    """Measure in a process of its own.

    Args:
        task: The worker's function.
        contexts: What is planned.
        against: Where the published package is measured; None measures this package, here.
        device: Where this package clusters.
        window: How many contexts this package clusters together at most; None is its default.

    Raises:
        MeasurementError: If the process fails, or the published package takes too long.
        OSError: If the interpreter cannot be run.
    """
    # The worker's folder stays off the import path. The published package is shielded from this
    # environment's PYTHONPATH as well; this package may be found by it.
    command = [sys.executable, "-P"] if against is None else [against.python, "-I"]
    job = {
        "task": task,
        "published": against is not None,
        "contexts": contexts,
        "device": device,
        "window": window,
        "patience": PATIENCE if against else float("inf"),
    }
    # The worker ends when this pipe does: it cannot outlive this process, however that ends.
    lifeline, held = os.pipe()
    try:
        return _run([*command, str(_WORKER), str(lifeline)], job, lifeline, against is not None)
    finally:
        os.close(held)
        os.close(lifeline)


def _run(command: Sequence[str], job: dict[str, Any], lifeline: int, patient: bool) -> dict[str, Any]:
    process = subprocess.Popen(
        command,
        pass_fds=[lifeline],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        # Where the worker itself keeps to the patience, it is given time to say how far it came.
        limit = PATIENCE + 60 * (job["task"] == "online") if patient else None
        answer, errors = process.communicate(json.dumps(job), timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise MeasurementError(f"stopped after {PATIENCE} s") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # With the processes that the package started.
            process.communicate()
    if process.returncode != 0:
        lines = [f"exit status {process.returncode}", *errors.strip().splitlines()]
        raise MeasurementError(lines[-1] if process.returncode > 0 else lines[0])  # Below 0: a signal.
    try:
        result = json.loads(answer)
    except json.JSONDecodeError:
        result = None
    if not isinstance(result, dict):
        raise MeasurementError("no answer")
    return result
