"""How much an engine's prefix cache holds, asked of the engine itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

try:
    import httpx
except ImportError as error:
    raise ImportError(
        'asking an engine needs httpx; install it with: pip install "contextpilot-integrations[openai]"',
        name="httpx",
    ) from error

from contextpilot_integrations.engines.detection import identify
from contextpilot_integrations.engines.engine import LLAMA_CPP, SGLANG, VLLM
from contextpilot_integrations.engines.fields import get_count, get_field
from contextpilot_integrations.index.slots import Slots

__all__ = ["CacheSize", "ask_cache_size"]


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What a prefix cache holds, for `ContextPilot`'s arguments of these names.

    Attributes:
        capacity: Tokens; None where the engine does not tell.
        slots: The slots of llama.cpp, which does not tell whether they share one buffer, nor how much the
            host's memory holds beside them: complete it with `dataclasses.replace`. None for engines whose
            cache is a tree of pages.
    """

    capacity: int | None = None
    slots: Slots | None = None


def ask_cache_size(base_url: str, *, api_key: str = "", timeout: float = 5.0) -> CacheSize:
    """Ask vLLM, SGLang or llama.cpp how much its prefix cache holds.

    vLLM tells in ``/metrics`` (``vllm:cache_config_info``), SGLang in ``/server_info``
    (``max_total_num_tokens``), llama.cpp in ``/props`` (``total_slots``). Of several data-parallel ranks the
    smallest counts, since nobody knows which one a prompt will meet. Running requests need room in it too.

    Args:
        base_url: As an OpenAI client takes it: "http://localhost:8000/v1".
        api_key: If the server wants one.
        timeout: Seconds for each of two requests.

    Returns:
        What is known; nothing for an engine that is not recognised or does not tell, or behind a router that
        does not pass the address on.

    Raises:
        httpx.HTTPError: If the server does not list its models.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    with httpx.Client(headers=headers, timeout=timeout, follow_redirects=True) as client:
        models = _json(client.get(f"{base_url.rstrip('/')}/models").raise_for_status())
        engine = identify(get_field(models, "data") or (), model="").engine
        if engine not in _READERS:
            return CacheSize()
        path, read = _READERS[engine]
        try:
            answer = client.get(base_url.rstrip("/").removesuffix("/v1") + path).raise_for_status()
        except httpx.HTTPError:
            return CacheSize()
    return read(answer)


def _vllm(answer: httpx.Response) -> CacheSize:
    sizes = []
    for labels in re.findall(r"^vllm:cache_config_info\{(.*)\}", answer.text, re.MULTILINE):
        label = dict(re.findall(r'(\w+)="(\d+)"', labels))
        if "block_size" in label and "num_gpu_blocks" in label:
            sizes.append(int(label["block_size"]) * int(label["num_gpu_blocks"]))
    return CacheSize(min(sizes, default=None))


def _sglang(answer: httpx.Response) -> CacheSize:
    return CacheSize(get_count(_json(answer), "max_total_num_tokens"))


def _llama_cpp(answer: httpx.Response) -> CacheSize:
    n_parallel = get_count(_json(answer), "total_slots")
    return CacheSize(slots=Slots(n_parallel)) if n_parallel else CacheSize()


def _json(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None


_READERS = {
    VLLM: ("/metrics", _vllm),
    SGLANG: ("/server_info", _sglang),
    LLAMA_CPP: ("/props", _llama_cpp),
}
