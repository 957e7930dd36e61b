"""A search server for the tests: the one that ELASTICSEARCH_URL names, else one that speaks its API.

For a server with credentials set ELASTICSEARCH_API_KEY too. The stand-in is a small program of another
project (noida-db). It is no Elasticsearch: what is found out with it holds for the API, and for scores up to
a constant factor.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator

import pytest

START_SECONDS = 20.0


@contextlib.contextmanager
def search_server() -> Iterator[str]:
    """Yield the URL of a server; the test is skipped where there is none and none starts."""
    if url := os.environ.get("ELASTICSEARCH_URL"):
        yield url
        return
    if importlib.util.find_spec("noida_db") is None:
        pytest.skip("neither ELASTICSEARCH_URL nor noida-db is there")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        command = [
            "start",
            "--host",
            "127.0.0.1",
            "--only",
            "elasticsearch",
            "--elasticsearch-port",
            str(port),
        ]
        process = subprocess.Popen(
            [sys.executable, "-m", "noida_db.cli", *command],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not _answers(url, process):
                pytest.skip("noida-db does not start here")
            yield url
        finally:
            # The program is a child of the command, so the signal goes to both.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str, process: subprocess.Popen[bytes]) -> bool:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return True
        except OSError:
            time.sleep(0.05)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
