"""llama.cpp's own HTTP server with a small model, inside this process, for the demo and its tests."""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

from contextpilot_integrations.demo.requirements import require
from contextpilot_integrations.demo.weights import fast_weights

__all__ = ["LlamaServer"]


class LlamaServer:
    """A server with one slot, on the loopback interface and a free port, that speaks the OpenAI API.

    The slot keeps the prompt it saw last: of the next one, the common prefix is not computed again, and
    nothing else of it is reused. ``usage.prompt_tokens_details.cached_tokens`` tells how many tokens that
    were. What a stopped server had cached is gone, so a fresh one is a fair start for each measurement.

    Threads that wait are told to sleep (``OMP_WAIT_POLICY=passive``, unless it is set): where they spin,
    another program on the same cores slows decoding ten times. OpenMP reads that when it is first loaded,
    so where torch was imported earlier, set the variable in the environment.

    Args:
        weights: A GGUF file. By default SmolLM2-135M-Instruct as Q8_0, written on first use
            (`fast_weights`).
        n_ctx: Tokens in the slot, prompt and answer together; SmolLM2 takes 8192 at most.
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
        n_threads: int | None = None,
        cache_ram_mib: int = 0,
        start_timeout: float = 60.0,
    ) -> None:
        if weights is not None:
            self.model = Path(weights).stem
        self.weights = weights
        self.n_ctx = n_ctx
        self.n_threads = n_threads if n_threads is not None else min(8, _available_cpus())
        self.cache_ram_mib = cache_ram_mib
        self.start_timeout = start_timeout
        self._server: Any = None

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its ``base_url``: ``http://127.0.0.1:<port>/v1``.

        Raises:
            RuntimeError: If the server is not running.
        """
        return f"{self._address()}/v1"

    def start(self) -> None:
        """Load the model and return when the server answers; nothing happens if it runs already.

        Raises:
            ImportError: If a package is missing; the message gives the command that installs it.
            RuntimeError: If the model cannot be loaded.
            TimeoutError: If the server does not become ready in time.
        """
        if self._server is not None:
            return
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        xllamacpp = require("xllamacpp")
        weights = Path(self.weights) if self.weights is not None else fast_weights()
        try:
            self._server = xllamacpp.Server(self._params(xllamacpp, weights))
        except RuntimeError as error:
            raise RuntimeError(f"llama.cpp could not start with {weights}; is it a GGUF model?") from error
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Let running requests end, then free port and memory; nothing happens if it does not run."""
        self._server = None  # its destructor ends the server's threads before it returns

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

    def _params(self, xllamacpp: Any, weights: Path) -> Any:
        params = xllamacpp.CommonParams()
        params.model.path = str(weights)
        params.model_alias = {self.model}
        params.hostnames = ["127.0.0.1"]
        params.port = 0
        params.n_ctx = self.n_ctx
        params.n_parallel = 1
        params.n_cache_reuse = 0  # pure prefix caching: no moving of later chunks
        params.cache_ram_mib = self.cache_ram_mib
        params.cpuparams.n_threads = self.n_threads
        params.cpuparams_batch.n_threads = self.n_threads
        params.verbosity = 0
        return params

    def _wait(self) -> None:
        # The loopback is asked directly, whatever proxy the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        deadline = time.monotonic() + self.start_timeout
        while True:
            try:
                with opener.open(f"{self._address()}/health", timeout=1):
                    return
            except OSError as error:  # refused, or 503 while the model loads
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"llama.cpp did not become ready in {self.start_timeout:g} s: {error}"
                    ) from error
            time.sleep(0.02)

    def _address(self) -> str:
        if self._server is None:
            raise RuntimeError("the server is not running; call start() or use it in a with statement")
        return str(self._server.listening_address)


def _available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
