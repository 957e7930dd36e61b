"""A vLLM server on the CPU, for measuring real prefix caching and reading real cache events."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from contextpilot_integrations.evaluation import vllm_process

__all__ = ["VLLMServer"]

_LONGEST_SOCKET_PATH = 107  # bytes, on Linux
_LONGEST_SOCKET_NAME = 40  # vLLM names its own sockets by a UUID
_LOG_TAIL = 40
# The model runs in the engine's process. In a worker of its own, the default on a CPU, either process waits
# for the other in a loop that never sleeps, until a second after the last answer: on two cores a prefill
# takes up to three times as long, and a server that is asked nothing slows down another one beside it.
_EXECUTOR = "vllm.v1.executor.uniproc_executor.UniProcExecutor"


class VLLMServer:
    """vLLM's OpenAI server with prefix caching, on the loopback interface and a free port.

    It reports cached tokens, takes request ids from ``X-Request-Id``, and publishes what its cache stores
    and removes as ZeroMQ messages. It runs in a process group of its own, which ends with this process.
    Stopped and started again, it has the addresses that it had.

    Args:
        model: A folder with a model, for instance `write_tiny_llama`'s.
        python: The interpreter of an environment that has vLLM; by default this one.
        blocks: How many blocks the prefix cache has, one of them unusable.
        block_size: Tokens in a block; on a CPU a multiple of 32.
        max_model_len: Tokens of a prompt and its answer. The cache must hold that many.
        arguments: More of vLLM's command line arguments; the last of two that contradict wins.
        start_timeout: Seconds until `start` gives up waiting. 30 to 60 are needed on two cores.

    Attributes:
        name: What the model is called in requests.

    Example:
        >>> with VLLMServer(model_folder) as server:  # doctest: +SKIP
        ...     client = openai.OpenAI(base_url=server.base_url, api_key="none")
    """

    name = "tiny"
    topic = "kv-events"

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        python: str | os.PathLike[str] = sys.executable,
        blocks: int = 300,
        block_size: int = 32,
        max_model_len: int = 8192,
        arguments: Sequence[str] = (),
        start_timeout: float = 240.0,
    ) -> None:
        self.model = Path(model)
        self.python = Path(python)
        self.blocks = blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.arguments = tuple(arguments)
        self.start_timeout = start_timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None  # While it runs.
        self._home: Path | None = None
        self._port = 0
        # The loopback is asked directly, whatever proxy the environment names.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    @property
    def address(self) -> str:
        """``http://127.0.0.1:<port>``.

        Raises:
            RuntimeError: If the server is not running, as with all that follow.
        """
        self._running()
        return f"http://127.0.0.1:{self._port}"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its ``base_url``."""
        return f"{self.address}/v1"

    @property
    def events_endpoint(self) -> str:
        """Where ZeroMQ subscribers hear what the cache stores and removes."""
        return f"ipc://{self._running()}/events"

    @property
    def replay_endpoint(self) -> str:
        """Where ZeroMQ dealers ask for messages that they missed."""
        return f"ipc://{self._running()}/replay"

    def start(self) -> None:
        """Load the model and return when the server answers; nothing happens if it runs already.

        Raises:
            RuntimeError: If the server ends instead; the message shows the end of its log.
            TimeoutError: If it does not become ready in time; so does this one.
            ValueError: If the folder for temporary files has too long a path for sockets.
        """
        if self._process is not None:
            return
        if self._home is None:
            self._home, self._port = _socket_folder(), _free_port()
        else:
            self._home.mkdir(mode=0o700)
        self._folder = self._home
        try:
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    # -P: the modules beside the file that is run must not stand in for others.
                    [self.python, "-P", vllm_process.__file__, *self._command_line()],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **_environment(self._folder)},
                    start_new_session=True,
                )
            self._wait(self._process)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and all its processes and remove its files; nothing happens if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            _end_group(process)
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def reset_prefix_cache(self) -> None:
        """Make the cache cold, once no request holds any of it.

        Raises:
            OSError: If the server does not answer.
            TimeoutError: If requests are still running after ten seconds.
        """
        request = urllib.request.Request(f"{self.address}/reset_prefix_cache", method="POST")
        deadline = time.monotonic() + 10
        while True:
            with self._opener.open(request, timeout=30) as answer:
                if json.load(answer)["success"]:
                    return
            if time.monotonic() > deadline:
                raise TimeoutError("requests that are still running hold the cache; it cannot be reset")
            time.sleep(0.05)

    def __enter__(self) -> VLLMServer:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self._running() / "log"

    def _running(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the server is not running; call start() or use it in a with statement")
        return self._folder

    def _command_line(self) -> list[str]:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.events_endpoint,
            "replay_endpoint": self.replay_endpoint,
            "topic": self.topic,
        }
        return [
            *("--model", str(self.model), "--served-model-name", self.name),
            *("--dtype", "float32"),  # CPUs without bfloat16 imitate it, many times slower.
            *("--host", "127.0.0.1", "--port", str(self._port)),
            *("--max-model-len", str(self.max_model_len), "--block-size", str(self.block_size)),
            *("--num-gpu-blocks-override", str(self.blocks)),  # It counts for a CPU too.
            "--enforce-eager",  # Compiling takes longer than such a model ever saves by it.
            *("--distributed-executor-backend", _EXECUTOR),
            *("--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-request-id-headers"),
            *("--kv-events-config", json.dumps(events)),
            *self.arguments,
        ]

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.start_timeout
        while True:
            try:
                with self._opener.open(f"{self.address}/health", timeout=1):
                    return
            except OSError:  # Refused until the model is loaded.
                if process.poll() is not None:
                    raise RuntimeError(
                        f"vLLM ended with {process.returncode} before it was ready:\n{self._log_tail()}"
                    ) from None
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"vLLM was not ready in {self.start_timeout:g} s:\n{self._log_tail()}"
                    ) from None
            time.sleep(0.1)

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-_LOG_TAIL:])


def _environment(folder: Path) -> dict[str, str]:
    return {
        "TMPDIR": str(folder),  # What it leaves there is removed with the folder.
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        # Seconds. A client that forgets idle connections sooner (the openai one after 5) meets none closing.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
        "VLLM_SERVER_DEV_MODE": "1",  # For /reset_prefix_cache.
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
        "VLLM_RPC_BASE_PATH": str(folder),
    }


def _socket_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vllm-"))
    if len(os.fsencode(folder)) + 1 + _LONGEST_SOCKET_NAME > _LONGEST_SOCKET_PATH:
        folder.rmdir()
        raise ValueError(f"{folder} is too long for the path of a socket; set TMPDIR to a shorter one")
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, give it ten seconds, and end whatever is left of its group."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
