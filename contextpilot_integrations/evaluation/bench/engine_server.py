"""The servers that `contextpilot bench engine` measures on, and how a pass starts cold on each."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from pathlib import Path

from contextpilot_integrations.evaluation import tiny_llama_process
from contextpilot_integrations.evaluation.bench.engine_requests import prompt_parts
from contextpilot_integrations.evaluation.bench.process import MeasurementError
from contextpilot_integrations.evaluation.traces import TraceRequest
from contextpilot_integrations.evaluation.vllm_server import VLLMServer

__all__ = ["GivenServer", "OwnServer", "own_servers", "python_with_vllm"]

SYSTEM_PROMPT = "Answer from the context."
"""Shorter than a page with all that the chat template adds, so that it is not what is found cached."""

ANSWER_TOKENS = 1
"""How many tokens are asked for, so that prefill is what is measured."""

_PAGE_TOKENS = 32
# Tokens of the system prompt, and of what a chat template writes around the messages.
_PREAMBLE_TOKENS = 64
_MODEL = {"hidden_size": 512, "layers": 8, "vocabulary": 8192}
_TOKEN_BYTES = 2 * _MODEL["layers"] * _MODEL["hidden_size"] * 4  # Keys and values, as float32.
_SERVER_BYTES = 2 * 2**30  # What a vLLM takes beside its cache.


@dataclass(frozen=True, slots=True)
class GivenServer:
    """Somebody's server, whose cache is left alone.

    Each pass starts cold by a first line of the system prompt that no other pass and no other run has: that
    works on any engine, and others may use the cache meanwhile.

    Attributes:
        base_url: What an OpenAI client takes as its ``base_url``.
        model: The model's name there.
        cold_start: How a pass starts cold.
        page_tokens: Tokens in a page of the cache; 1 where it is not known.
        cache_tokens: How many tokens the cache holds; None where it is not known.
    """

    base_url: str
    model: str
    cold_start: str = "a first line of its own in every prompt of a pass"
    page_tokens: int = 1
    cache_tokens: int | None = None
    _pass: Iterator[int] = field(default_factory=lambda: count(1), repr=False)
    _run: str = field(default_factory=lambda: secrets.token_hex(4), repr=False)

    def cold(self) -> str:
        """Start a pass.

        Returns:
            The system prompt of all its requests.
        """
        return f"[{self._run}-{next(self._pass)}]\n{SYSTEM_PROMPT}"


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A vLLM of our own, whose cache is reset before each pass; attributes as `GivenServer`'s.

    Attributes:
        vllm: The server, running.
        tokens: The tokens of each part of the prompts (`prompt_parts`).
    """

    vllm: VLLMServer
    tokens: Mapping[Hashable, int]
    cold_start: str = "a reset of its own prefix cache"

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its ``base_url``."""
        return self.vllm.base_url

    @property
    def model(self) -> str:
        """The model's name there."""
        return self.vllm.name

    @property
    def page_tokens(self) -> int:
        """Tokens in a page of the cache."""
        return self.vllm.block_size

    @property
    def cache_tokens(self) -> int:
        """How many tokens the cache holds."""
        return (self.vllm.blocks - 1) * self.vllm.block_size

    def cold(self) -> str:
        """Reset the cache, and return the system prompt."""
        self.vllm.reset_prefix_cache()
        return SYSTEM_PROMPT


def python_with_vllm(python: str | None) -> str:
    """Return an interpreter that has vLLM.

    Args:
        python: The one that was asked for; None: the one that ``make test-engines`` builds in this folder,
            else the one that runs.

    Raises:
        ValueError: If there is none, or it has no vLLM.
    """
    hint = "`make test-engines` builds one that has it (CPU, 3.4 GB): .venv-vllm/bin/python"
    if python is None:
        built = Path(".venv-vllm/bin/python")
        if built.exists():
            return str(built.absolute())
        if importlib.util.find_spec("vllm") is not None:
            return sys.executable
        raise ValueError(f"no interpreter with vLLM was found; {hint}. Or measure a server with --base-url")
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-P", "-c", look], capture_output=True, check=False)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"--python: cannot run {python!r} as a Python interpreter: {reason}") from error
    if found.returncode:
        raise ValueError(f"--python: {python} has no vLLM; {hint}")
    return python


@contextmanager
def own_servers(
    requests: Sequence[TraceRequest], *, number: int, python: str, cache_share: float = 1.0
) -> Iterator[list[OwnServer]]:
    """Start vLLM with a random-weight Llama of 30 M parameters, with a cache made to measure.

    Args:
        requests: What will be asked.
        number: How many of them, all alike. One that is asked nothing takes next to no CPU time.
        python: An interpreter with vLLM.
        cache_share: The share of all tokens of the prompts in original order that the cache holds; 1 is
            room for all of them.

    Raises:
        ValueError: If the share is out of range, such a cache does not hold the longest prompt, or the
            machine has no memory for so many of them.
        MeasurementError: If the model cannot be written, or a server does not start.
    """
    if not 0 < cache_share <= 1:
        raise ValueError(f"--cache-share must be above 0 and at most 1, not {cache_share:g}")
    parts = {part: text for request in requests for part, text in prompt_parts(request).items()}
    with tempfile.TemporaryDirectory(prefix="tiny-llama-") as folder:
        # The words of the texts, not the markers in front of them, which no tokenizer knows.
        known = {block.text for request in requests for block in request.blocks}
        known |= {request.query for request in requests if request.query}
        model = {**_MODEL, "folder": folder, "texts": sorted(known)}
        counts = _write_model(python, model, list(parts.values()))
        tokens = dict(zip(parts, counts, strict=True))
        originals, annotated = [], []
        for request in requests:
            annotation = tokens.get(frozenset(request.blocks), 0)
            original = (
                _PREAMBLE_TOKENS + tokens.get(request.query, 0) + sum(tokens[b] for b in request.blocks)
            )
            originals.append(original)
            annotated.append(original + annotation)
        longest = max(annotated) + ANSWER_TOKENS
        # With room for all, the annotations have room too.
        room = sum(annotated) if cache_share == 1 else cache_share * sum(originals)
        # One block more, since vLLM keeps one for itself; requests end in blocks that are not full.
        blocks = ceil(room / _PAGE_TOKENS) + (len(requests) if cache_share == 1 else 0) + 1
        if (blocks - 1) * _PAGE_TOKENS < longest:
            raise ValueError(
                f"--cache-share {cache_share:g} of {len(requests)} requests is room for "
                f"{(blocks - 1) * _PAGE_TOKENS:,} tokens, but the longest prompt has {longest:,}; "
                "take more --requests, or a larger share"
            )
        _check_memory(number, blocks)
        with ExitStack() as stack:
            servers = []
            for _ in range(number):
                vllm = VLLMServer(
                    folder, python=python, blocks=blocks, block_size=_PAGE_TOKENS, max_model_len=longest
                )
                try:
                    stack.enter_context(vllm)
                except (RuntimeError, TimeoutError) as error:
                    raise MeasurementError(str(error)) from error
                servers.append(OwnServer(vllm, tokens))
            yield servers


def _check_memory(servers: int, blocks: int) -> None:
    """Make sure that the machine has the memory, as far as it tells.

    Raises:
        ValueError: If it has not.
    """
    needed = servers * (blocks * _PAGE_TOKENS * _TOKEN_BYTES + _SERVER_BYTES)
    available = _available_memory()
    if available is not None and needed > available:
        each = "one vLLM" if servers == 1 else f"{servers} vLLMs, one for each pass,"
        raise ValueError(
            f"{each} would take {needed / 2**30:.1f} GiB of memory, but {available / 2**30:.1f} GiB are "
            "available; take a smaller --cache-share, or fewer --requests"
        )


def _available_memory() -> int | None:
    """Return how many bytes can be had without swapping; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _write_model(python: str, model: Mapping[str, object], texts: Sequence[str]) -> list[int]:
    """Write the model, and count the tokens of texts."""
    job = {"model": model, "texts": texts}
    done = subprocess.run(
        [python, "-P", tiny_llama_process.__file__],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if done.returncode:
        raise MeasurementError(f"the model could not be written: {done.stderr.strip().splitlines()[-1]}")
    counts: list[int] = json.loads(done.stdout.splitlines()[-1])
    return counts
