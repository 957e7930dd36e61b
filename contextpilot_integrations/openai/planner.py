"""What the synchronous and the asynchronous completions have in common: all but the sending."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import openai

from contextpilot_integrations import conversation
from contextpilot_integrations.block import ContextBlock, checked_blocks
from contextpilot_integrations.edits import Message, Rewriting, checked_messages
from contextpilot_integrations.engines.detection import Server, identify
from contextpilot_integrations.engines.engine import PLAIN, Engine
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.openai.exchange import Exchange
from contextpilot_integrations.openai.retries import is_passing
from contextpilot_integrations.pilot import ContextPilot, estimate_tokens
from contextpilot_integrations.plan import Plan
from contextpilot_integrations.scheduling import leaders

if TYPE_CHECKING:
    from contextpilot_integrations.engines.cache_follower import CacheFollower
    from contextpilot_integrations.openai.tracking import PromptTracker

__all__ = ["Message", "Planner"]

logger = logging.getLogger(__name__)

_MOST_DOUBLINGS = 7
_ASK_AGAIN_AFTER = 60.0  # seconds
# What a caller may want who passes a parameter that is set here.
_INSTEAD = {
    "model": "make other completions for another model",
    "messages": "a batch takes contexts and questions",
    "stream": "stream() yields the text as it comes, complete() returns it whole",
    "stream_options": "usage is always asked for",
}


class Planner:
    """Plans requests to one model, and knows the server. It sends nothing itself.

    Args:
        pilot: Who plans. Share one among all whose prompts meet the same engine.
        endpoint: The server's base URL.
        model: The model's name there.
        preamble: The system prompt; may be empty.
        engine: What the server runs; None: asked of the server with the first request.
        context_window: How many tokens of prompt and answer fit; None: as the server tells, if it does.
        follower: Who is told which prompts go out.
    """

    tokenize_timeout = 5.0  # seconds, for what takes milliseconds; the request waits for it.

    def __init__(
        self,
        pilot: ContextPilot,
        endpoint: str,
        *,
        model: str,
        preamble: str,
        engine: Engine | None,
        context_window: int | None,
        follower: CacheFollower | None,
    ) -> None:
        if context_window is not None and not context_window >= 1:
            raise ValueError(f"context_window must be at least 1, got {context_window}")
        self.pilot = pilot
        self.tracker = None if follower is None else _tracker(follower, pilot)
        self.server = None if engine is None else Server(engine, context_window)
        self.model = model
        self.preamble = preamble
        self._endpoint = endpoint
        # Beside the API's version, not under it.
        self.tokenize_url = endpoint.rstrip("/").removesuffix("/v1") + "/tokenize"
        self._context_window = context_window
        self._lock = Lock()
        self._tells_cached_tokens = False
        self._said: set[str] = set()
        self._ask_again = 0.0
        self._untracked = 0  # In a row.
        self._to_pass_over = 0

    def one(
        self,
        blocks: Iterable[ContextBlock],
        question: str,
        messages: Sequence[Message] | None,
        rewrite: bool,
        tenant: str,
        request_id: str | None,
        session_id: str,
        params: Mapping[str, Any],
    ) -> Exchange:
        """Plan one request; see `Completions.stream`."""
        _check_params(params)
        blocks, request_id = checked_blocks(blocks), request_id or uuid4().hex
        if (messages is None and not blocks and not question) or (messages is not None and question):
            raise ValueError("pass either blocks and a question, or messages")
        if messages is not None:
            tools = params.get("tools")
            namespace = self._namespace(tenant, json.dumps(tools, default=repr) if tools else "")
            rewriting = Rewriting(checked_messages(messages))
            if rewrite:
                rewriting = conversation.rewrite(
                    messages, pilot=self.pilot, namespace=namespace, blocks=blocks, request_id=request_id
                )
            # Where its blocks stand is not told: a follower tracks the prompt's tokens as a whole.
            plan = replace(
                rewriting.plan or Plan((), (), namespace=namespace, request_id=request_id),
                blocks=(),
                ranks=(),
                duplicates=(),
            )
            return Exchange(plan, rewriting.messages, self.model, session_id, params, rewriting.edits)
        plan = self.pilot.prepare(
            blocks, namespace=self._namespace(tenant, self.preamble), request_id=request_id
        )
        return Exchange(plan, self._messages(plan, question), self.model, session_id, params)

    def batch(
        self,
        contexts: Iterable[Iterable[ContextBlock]],
        questions: Iterable[str],
        tenant: str,
        request_ids: Sequence[str] | None,
        max_in_flight: int,
        show_progress: bool,
        params: Mapping[str, Any],
    ) -> tuple[list[Exchange], tuple[int, ...], list[int | None]]:
        """Plan a batch; see `Completions.complete_batch`.

        Returns:
            The requests in the order given, their places in the order to send, and their leaders' places.
        """
        _check_params(params)
        contexts, questions = list(contexts), list(questions)
        if len(contexts) != len(questions):
            raise ValueError(f"there are {len(contexts)} contexts for {len(questions)} questions")
        if not isinstance(max_in_flight, int) or max_in_flight < 1:
            raise ValueError(f"max_in_flight must be an integer of at least 1, got {max_in_flight!r}")
        batch = self.pilot.prepare_batch(
            contexts,
            namespace=self._namespace(tenant, self.preamble),
            request_ids=[uuid4().hex for _ in contexts] if request_ids is None else request_ids,
            show_progress=show_progress,
        )
        exchanges = [
            Exchange(plan, self._messages(plan, question), self.model, "", params)
            for plan, question in zip(batch.plans, questions, strict=True)
        ]
        return exchanges, batch.schedule, leaders([plan.blocks for plan in batch.plans], batch.schedule)

    def recognise(self, models: object) -> Server:
        """Remember the server by the answer to ``models.list``, whatever it holds."""
        found = identify(getattr(models, "data", None) or (), self.model)
        self.server = replace(found, context_window=self._context_window or found.context_window)
        return self.server

    def unrecognised(self, error: Exception, tenant: str) -> Server:
        """Return what to make of a server that does not list its models.

        A failure of the moment is not held against it; but without a salt no tenant's prompt goes out
        before it is known whether the engine takes one.

        Raises:
            Exception: The failure, if a tenant's request has to wait for a better moment.
        """
        if not is_passing(error):
            return self.recognise(None)
        if isinstance(error, openai.APITimeoutError):
            # Waiting for the list of models again would hold up every request.
            self._ask_again = time.monotonic() + _ASK_AGAIN_AFTER
        if tenant:
            raise error
        return Server(PLAIN, self._context_window)

    def known_server(self, tenant: str) -> Server | None:
        """Return what to take the server for without asking it; None where it is to be asked."""
        if self.server is None and not tenant and time.monotonic() < self._ask_again:
            return Server(PLAIN, self._context_window)
        return self.server

    def models_timeout(self, timeout: object) -> float:
        """Return how many seconds to wait for the list of models, given how long the client waits."""
        longest = 5.0
        return min(longest, timeout) if isinstance(timeout, int | float) else longest

    def check(self, exchange: Exchange, server: Server) -> None:
        """Check a request right before it goes out.

        Raises:
            ValueError: If its prompt alone is longer than the window. Only a pilot with a token counter
                can tell: an estimate would refuse prompts that fit.
        """
        if exchange.plan.namespace.tenant and server.engine.salt_field is None:
            self._say_once(
                "salt",
                "%s knows no cache salt, so tenants share its prefix cache: how fast an answer begins may "
                "tell one what another's prompts hold. Keep tenants apart by servers of their own",
                server.engine.name,
            )
        window, count = server.context_window, self.pilot.token_counter
        text = "\n\n".join(m["content"] for m in exchange.messages if isinstance(m.get("content"), str))
        # No token is shorter than a byte, so most prompts need not be counted.
        if window is None or count is None or len(text.encode("utf-8", "surrogatepass")) <= window:
            return
        try:
            tokens = count(text)
        except Exception:
            return  # Planning has failed and warned of it already; the server will tell.
        if tokens > window:
            raise ValueError(
                f"the prompt has {tokens} tokens, but the context window of {self.model} is {window} tokens; "
                "send fewer or shorter blocks"
            )

    def to_tokenize(self, exchange: Exchange, server: Server) -> list[dict[str, Any]]:
        """Return what to post to ``/tokenize`` before a request goes out: nothing if no one follows."""
        if self.tracker is None or exchange.tracked_tokens is not None:
            return []
        if not server.engine.tokenizes_messages:
            self._say_once(
                "tokenize",
                "%s does not tell the tokens of a prompt, so no KV event can be traced to what was sent",
                server.engine.name,
            )
            return []
        with self._lock:
            if self._to_pass_over:
                self._to_pass_over -= 1
                return []
        return self.tracker.bodies(exchange)

    def track(self, exchange: Exchange, server: Server, answers: Sequence[object]) -> None:
        """Track a request by the answers of ``/tokenize``."""
        if self.tracker is not None and answers:
            self.tracker.track(exchange, server, answers)
            with self._lock:
                self._untracked = 0

    def untracked(self, error: Exception) -> None:
        """Take note that a request goes out untracked.

        After the second in a row the next two are not tokenized at all, after the third the next six, and at
        most 126: a server that does not answer must not hold up every request.
        """
        with self._lock:
            self._untracked = min(self._untracked + 1, _MOST_DOUBLINGS)
            self._to_pass_over = 2**self._untracked - 2
        self._say_once(
            "tracking",
            "a prompt could not be tokenized by the server (%s), so KV events about it are not followed; "
            "what is believed of it ends by capacity alone (logged once)",
            type(error).__name__,
        )

    def settle(self, exchange: Exchange) -> None:
        """Learn from a request that is over, one way or another."""
        exchange.close()
        plan = exchange.plan
        if not exchange.began:
            # The engine has not cached it, so nobody should count on it.
            self.pilot.evict(plan.request_id, namespace=plan.namespace)
            return
        completion, engine = exchange.completion, self.server.engine if self.server else PLAIN
        usage = completion.usage
        if usage.prompt_tokens is not None and usage.completion_tokens is not None:
            tokens = usage.prompt_tokens + usage.completion_tokens
            self.pilot.measured(plan.request_id, tokens, usage.cached_tokens, namespace=plan.namespace)
        tracked, computed = exchange.tracked_tokens, completion.usage.prompt_tokens
        if tracked is not None and computed not in (None, tracked):
            self._say_once(
                "other tokens",
                "%s computed a prompt of %d tokens, but tokenizes it as %d; KV events about such prompts are "
                "not followed",
                engine.name,
                computed,
                tracked,
            )
        if completion.usage.cached_tokens is not None:
            self._tells_cached_tokens = True
        elif (
            # vLLM and SGLang leave out a count of 0 too, so only an expected one can be missed.
            plan.expected_cached_tokens
            and completion.finish_reason
            and engine.cached_tokens_flag
            and not self._tells_cached_tokens
        ):
            self._say_once(
                "cached tokens",
                "%s tells no cached tokens where about %d were expected; does it run with %s?",
                engine.name,
                plan.expected_cached_tokens,
                engine.cached_tokens_flag,
            )

    def _namespace(self, tenant: str, preamble: str) -> Namespace:
        return Namespace(endpoint=self._endpoint, model=self.model, tenant=tenant, preamble=preamble)

    def _messages(self, plan: Plan, question: str) -> list[Message]:
        user = "\n\n".join(part for part in (plan.render(), plan.order_annotation, question) if part)
        system = [{"role": "system", "content": self.preamble}] if self.preamble else []
        return [*system, {"role": "user", "content": user}]

    def _say_once(self, what: str, message: str, *args: object) -> None:
        with self._lock:
            first = what not in self._said
            self._said.add(what)
        if first:
            logger.warning(message, *args)


def _check_params(params: Mapping[str, Any]) -> None:
    for name, instead in _INSTEAD.items():
        if name in params:
            raise TypeError(f"{name} is set by the completions; leave it out: {instead}")


def _tracker(follower: CacheFollower, pilot: ContextPilot) -> PromptTracker:
    if follower.pilot is not pilot:
        raise ValueError("follower must follow the cache for the same pilot that plans the prompts")
    # Whoever has a follower has what following needs; others need not.
    from contextpilot_integrations.openai.tracking import PromptTracker

    return PromptTracker(follower, pilot.token_counter or estimate_tokens)
