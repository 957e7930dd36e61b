"""Telling a cache follower which prompts go out, token by token. It sends nothing itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

from contextpilot_integrations.engines.cache_follower import CacheFollower, estimate_block_ends
from contextpilot_integrations.engines.detection import Server
from contextpilot_integrations.engines.fields import get_field
from contextpilot_integrations.engines.page_table import Prompt
from contextpilot_integrations.openai.exchange import Exchange

__all__ = ["PromptTracker"]

_MOST_TEMPLATES = 64

# What of a request the chat template sees beside its messages (vLLM: TokenizeChatRequest, SGLang:
# TokenizeRequest).
_TEMPLATE_FIELDS = (
    "tools",
    "tool_choice",
    "reasoning_effort",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
)


class PromptTracker:
    """Has prompts tokenized by the engine itself, before they are sent, and tracked by a follower.

    Before a request goes out, its `bodies` are posted to ``/tokenize``, and the answers handed to `track`.
    That is one short call a request; one more with the first of them tells where in a prompt the user's
    message stands.

    Args:
        follower: Whom to tell.
        count: Counts the tokens of a text; how long blocks are in proportion to one another is enough.
    """

    def __init__(self, follower: CacheFollower, count: Callable[[str], int]) -> None:
        self._follower = follower
        self._count = count
        self._length = lru_cache(maxsize=8192)(lambda block: count(f"{block.render()}\n\n"))
        # By what the template sees beside the messages: the tokens before and behind the user's text.
        self._margins: dict[str, tuple[int, int]] = {}

    def bodies(self, exchange: Exchange) -> list[dict[str, Any]]:
        """Return what to ask ``/tokenize`` about a request."""
        whole = exchange.templated(_TEMPLATE_FIELDS)
        if not exchange.plan.blocks or _key(whole) in self._margins:
            return [whole]
        *before, user = whole["messages"]
        return [whole, {**whole, "messages": [*before, {**user, "content": ""}]}]

    def track(self, exchange: Exchange, server: Server, answers: Sequence[object]) -> None:
        """Track a request, and set its plan's expected tokens to what the engine has cached of it now.

        Raises:
            ValueError: If an answer has no tokens.
        """
        token_ids, *empty = map(_token_ids, answers)
        plan = exchange.plan
        ends: tuple[int, ...] = ()
        if plan.blocks:
            whole = exchange.templated(_TEMPLATE_FIELDS)
            if empty:
                if len(self._margins) >= _MOST_TEMPLATES:
                    self._margins.clear()
                start = _shared(token_ids, empty[0])
                self._margins[_key(whole)] = start, len(empty[0]) - start
            start, behind = self._margins.get(_key(whole), (0, 0))
            rest = whole["messages"][-1]["content"].removeprefix(plan.render())
            ends = estimate_block_ends(
                plan, self._length, start=start, stop=len(token_ids) - behind, behind=self._count(rest)
            )
        salt = plan.namespace.tenant if server.engine.salt_field else ""
        prompt = Prompt(token_ids, salt or None, server.adapter)
        cached = self._follower.track(plan, prompt, ends)
        exchange.plan = replace(plan, expected_cached_tokens=cached)
        exchange.tracked_tokens = len(token_ids)


def _shared(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _token_ids(answer: object) -> Sequence[int]:
    token_ids = get_field(answer, "tokens")
    if not isinstance(token_ids, list):
        raise ValueError("the answer of /tokenize has no tokens")
    return token_ids


def _key(body: Mapping[str, Any]) -> str:
    return json.dumps({**body, "messages": body["messages"][:-1]}, sort_keys=True, default=repr)
