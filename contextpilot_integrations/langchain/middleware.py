"""Middleware for LangChain's agents: what the model can see already is not sent again."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, TypeAlias, cast

from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from contextpilot_integrations.langchain.messages import rewrite_messages
from contextpilot_integrations.namespace import Namespace
from contextpilot_integrations.pilot import ContextPilot

try:
    from langchain.agents.middleware import (
        AgentMiddleware,
        AgentState,
        ModelCallResult,
        ModelRequest,
        ModelResponse,
    )
except ImportError as error:
    raise ImportError(
        "contextpilot_integrations.langchain.middleware needs langchain: "
        'pip install "contextpilot-integrations[langchain-agents]"'
    ) from error

__all__ = ["ContextPilotMiddleware", "UnsupportedModelBehavior"]

logger = logging.getLogger(__name__)

UnsupportedModelBehavior: TypeAlias = Literal["ignore", "warn", "raise"]


class ContextPilotMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Rewrites what an agent sends to its model; an item of ``create_agent(middleware=[...])``.

    In what tools returned, and in retrieved blocks, text that stands in the messages before gives way to an
    annotation that says where. Only the request is rewritten, on each call: the agent's state, and so every
    checkpoint, keeps the originals. The messages alone decide what is left out: no thread's id is needed,
    and whichever process goes on with a checkpoint sends what the one before it sent. Only the order of a
    first message's blocks is remembered, by the pilot. Documents that a tool returned as its artifact
    (``response_format="content_and_artifact"``) are the blocks of its text.

    Give it last, next to the model: middleware that trims or summarises has to come before it.

    A model is unsupported where the messages given are not those that it sees: one that leaves out earlier
    messages, since its server remembers them (``previous_response_id``). Such a request goes out as it is.

    Args:
        pilot: Who aligns, and remembers orders. Share one among all whose prompts meet the same engine.
        endpoint: Where the engine is, for instance its base URL.
        model: The model's name there.
        tenant: Whoever must not share a cache with anyone else. For a tenant per request, override
            `namespace`.
        unsupported_model_behavior: Whether such a request is also warned of, once, or refused.

    Raises:
        ValueError: If ``unsupported_model_behavior`` is none of the three, or a model is unsupported and
            it is "raise".
    """

    def __init__(
        self,
        pilot: ContextPilot | None = None,
        *,
        endpoint: str = "",
        model: str = "",
        tenant: str = "",
        unsupported_model_behavior: UnsupportedModelBehavior = "warn",
    ) -> None:
        super().__init__()
        if unsupported_model_behavior not in ("ignore", "warn", "raise"):
            raise ValueError(
                'unsupported_model_behavior must be "ignore", "warn" or "raise", '
                f"got {unsupported_model_behavior!r}"
            )
        self.pilot = ContextPilot() if pilot is None else pilot
        self.endpoint, self.model, self.tenant = endpoint, model, tenant
        self.unsupported_model_behavior = unsupported_model_behavior
        self._warned = False

    def namespace(self, request: ModelRequest[Any]) -> Namespace:
        """Return whose cache a request meets; its preamble are the definitions of the tools."""
        return Namespace(
            endpoint=self.endpoint, model=self.model, tenant=self.tenant, preamble=_definitions(request.tools)
        )

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelCallResult[Any]:
        """Call the model with the rewritten messages."""
        return handler(self._rewritten(request))

    async def awrap_model_call(
        self,
        request: ModelRequest[Any],
        handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]],
    ) -> ModelCallResult[Any]:
        """Call the model with the rewritten messages."""
        return await handler(self._rewritten(request))

    def _rewritten(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        if not self._supports(request):
            return request
        system = [] if request.system_message is None else [request.system_message]
        try:
            namespace = self.namespace(request)
        except Exception as error:
            self.pilot.report_failure(error, "rewriting")
            return request
        sent = rewrite_messages([*system, *request.messages], pilot=self.pilot, namespace=namespace)
        rewritten = request.override(messages=cast(list[AnyMessage], sent[len(system) :]))
        return rewritten.override(system_message=cast(SystemMessage, sent[0])) if system else rewritten

    def _supports(self, request: ModelRequest[Any]) -> bool:
        if not (
            getattr(request.model, "use_previous_response_id", False)
            or request.model_settings.get("previous_response_id")
        ):
            return True
        message = (
            f"{type(request.model).__name__} leaves out earlier messages, which its server remembers "
            "(previous_response_id): what it sees cannot be told, so its messages are not rewritten"
        )
        if self.unsupported_model_behavior == "raise":
            raise ValueError(message)
        if self.unsupported_model_behavior == "warn" and not self._warned:
            self._warned = True
            logger.warning("%s", message)
        return False


def _definitions(tools: Iterable[Any]) -> str:
    definitions = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in tools]
    return json.dumps(definitions, sort_keys=True, default=str) if definitions else ""
