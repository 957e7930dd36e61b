"""llama.cpp's own HTTP server with a small model, for the demo and its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType

from contextpilot_integrations.demo import llama_process
from contextpilot_integrations.demo.requirements import require
from contextpilot_integrations.demo.weights import fast_weights

__all__ = ["LlamaServer"]


class LlamaServer:
    """A server on the loopback interface and a free port that speaks the OpenAI API.

    A slot keeps the prompt it saw last: of the next one, the common prefix is not computed again, and
    nothing else of it is reused. ``usage.prompt_tokens_details.cached_tokens`` tells how many tokens that
    were. What a stopped server had cached is gone, so a fresh one is a fair start for each measurement.

    It runs in a process of its own, since OpenMP reads only once, when torch first loads it, how long
    threads that wait spin before they sleep (``GOMP_SPINCOUNT``, 5,000 unless it is set). Where they spin
    for long, another program on the same cores slows decoding ten times; where they never do, decoding
    takes a third longer.

    Args:
        weights: A GGUF file. By default SmolLM2-135M-Instruct as Q4_0, written on first use
            (`fast_weights`).
        n_ctx: Tokens in a slot, prompt and answer together; SmolLM2 takes 8192 at most.
        n_parallel: How many slots there are, each for one request at a time.
        kv_unified: Whether the slots share one buffer of all their tokens.
        n_threads: Threads to compute with; by default as many as there are CPUs, but at most 8.
        cache_ram_mib: Memory for prompts that left the slot, from where they come back when asked again
            (SmolLM2: about 20 MiB for 850 tokens). 0 keeps none, -1 sets no limit.
        start_timeout: Seconds until `start` gives up waiting.

    Example:
        >>> with LlamaServer() as server:  # doctest: +SKIP
        ...     client = openai.OpenAI(base_url=server.base_url, api_key="none")
    """

    model = "SmolLM2-135M-Instruct"

    def __init__(
        self,
        weights: str | os.PathLike[str] | None = None,
        *,
        n_ctx: int = 4096,
        n_parallel: int = 1,
        kv_unified: bool = False,
        n_threads: int | None = None,
        cache_ram_mib: int = 0,
        start_timeout: float = 60.0,
    ) -> None:
        if weights is not None:
            self.model = Path(weights).stem
        self.weights = weights
        self.n_ctx = n_ctx
        self.n_parallel = n_parallel
        self.kv_unified = kv_unified
        self.n_threads = n_threads if n_threads is not None else min(8, _available_cpus())
        self.cache_ram_mib = cache_ram_mib
        self.start_timeout = start_timeout
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its ``base_url``: ``http://127.0.0.1:<port>/v1``.

        Raises:
            RuntimeError: If the server is not running.
        """
        if self._process is None:
            raise RuntimeError("the server is not running; call start() or use it in a with statement")
        return f"{self._address}/v1"

    def start(self) -> None:
        """Load the model and return when the server answers; nothing happens if it runs already.

        Raises:
            ImportError: If a package is missing; the message gives the command that installs it.
            RuntimeError: If the model cannot be loaded.
            TimeoutError: If the server does not become ready in time.
        """
        if self._process is not None:
            return
        require("xllamacpp")
        weights = Path(self.weights) if self.weights is not None else fast_weights()
        settings = {
            "weights": str(weights),
            "model": self.model,
            "n_ctx": self.n_ctx * self.n_parallel,
            "n_parallel": self.n_parallel,
            "kv_unified": self.kv_unified,
            "n_threads": self.n_threads,
            "cache_ram_mib": self.cache_ram_mib,
        }
        self._process = subprocess.Popen(
            [sys.executable, llama_process.__file__, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={"GOMP_SPINCOUNT": "5000", **os.environ},
        )
        try:
            assert self._process.stdout is not None
            self._address = self._process.stdout.readline().strip()
            if not self._address:
                raise RuntimeError(f"llama.cpp could not start with {weights}; is it a GGUF model?")
            self._wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and free port and memory; nothing happens if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=5)  # Closes its standard input, which ends it.
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def __enter__(self) -> LlamaServer:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _wait(self) -> None:
        # The loopback is asked directly, whatever proxy the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + self.start_timeout
        while True:
            try:
                with opener.open(f"{self._address}/health", timeout=1):
                    return
            except OSError as error:  # refused, or 503 while the model loads
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"llama.cpp did not become ready in {self.start_timeout:g} s: {error}"
                    ) from error
            time.sleep(0.02)


def _available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
