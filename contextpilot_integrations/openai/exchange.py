"""A request on its way from its plan to its completion."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageFunctionToolCall
from openai.types.chat.chat_completion_chunk import ChoiceDeltaToolCall
from openai.types.chat.chat_completion_message_function_tool_call import Function

from contextpilot_integrations.edits import Edit
from contextpilot_integrations.engines.detection import Server
from contextpilot_integrations.engines.usage import Usage, read_usage
from contextpilot_integrations.openai.completion import Completion
from contextpilot_integrations.openai.retries import is_passing
from contextpilot_integrations.plan import Plan

__all__ = ["Exchange", "reading_chunks"]


@contextmanager
def reading_chunks() -> Iterator[None]:
    """Tell what could not be read as chunks of an answer.

    Raises:
        ConnectionError: Instead of whatever reading them raised.
    """
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise ConnectionError(
            f"the server sent what is no chunk of a chat completion ({type(error).__name__})"
        ) from error


class Exchange:
    """What is sent for a request, and what has come back so far. It sends nothing itself.

    Args:
        plan: The request's plan.
        messages: What goes out.
        model: The model's name.
        session_id: The conversation that it belongs to; may be empty.
        params: Further parameters of ``chat.completions.create``.
        edits: How the messages differ from those given.

    Attributes:
        began: Whether a first token has come back: the prompt is in the engine's cache.
        on_first_token: Called when it does.
        error: Why there is no whole answer.
        tracked_tokens: How many tokens a cache follower was told that the prompt has; None if it was not.
    """

    def __init__(
        self,
        plan: Plan,
        messages: Sequence[Mapping[str, Any]],
        model: str,
        session_id: str,
        params: Mapping[str, Any],
        edits: tuple[Edit, ...] = (),
    ) -> None:
        self.plan = plan
        self.messages = messages
        self.began = False
        self.on_first_token: Callable[[], object] = lambda: None
        self.error: Exception | None = None
        self.tracked_tokens: int | None = None
        self._model = model
        self._session_id = session_id
        self._params = params
        self._edits = edits
        self._texts: list[str] = []
        self._tool_calls: dict[int, ChatCompletionMessageFunctionToolCall] = {}
        self._usage = Usage()
        self._finish_reason: str | None = None
        self._sent: float | None = None
        self._first_token: float | None = None
        self._ended: float | None = None

    def arguments(self, server: Server) -> dict[str, Any]:
        """Return what ``chat.completions.create`` takes, and start the clock.

        Raises:
            TypeError: If the further parameters hold one of these.
        """
        if self._sent is None:
            self._sent = time.perf_counter()
        params = {**self._params}
        ours = server.engine.extra_body(
            request_id=str(self.plan.request_id),
            session_id=self._session_id,
            tenant=self.plan.namespace.tenant,
        )
        return dict(
            model=self._model,
            messages=self.messages,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={**ours, **(params.pop("extra_body", None) or {})},
            **params,
        )

    def templated(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what the chat template is given: model, messages, and what there is of further fields."""
        fields = {**self._params, **(self._params.get("extra_body") or {})}
        further = {name: fields[name] for name in names if name in fields}
        return {"model": self._model, "messages": self.messages, **further}

    def add(self, chunk: ChatCompletionChunk) -> str:
        """Take a chunk of the answer, and return its text.

        The first chunk may carry only the role, and a model that reasons sends other tokens before its
        text: these count as first tokens too.
        """
        usage = read_usage(chunk)
        if usage != Usage():
            self._usage = usage
        text = ""
        for choice in chunk.choices or ():
            said = choice.delta and any(value for name, value in choice.delta if name != "role")
            if (said or choice.finish_reason) and not self.began:
                self.began = True
                self._first_token = time.perf_counter()
                self.on_first_token()
            if not choice.index:
                text += (choice.delta and choice.delta.content) or ""
                for tool_call in (choice.delta and choice.delta.tool_calls) or ():
                    self._add_tool_call(tool_call)
                self._finish_reason = choice.finish_reason or self._finish_reason
        if text:
            self._texts.append(text)
        return text

    def _add_tool_call(self, part: ChoiceDeltaToolCall) -> None:
        # A server that numbers no calls sends each whole.
        number = len(self._tool_calls) if part.index is None else part.index
        if number not in self._tool_calls:
            function = Function(name="", arguments="")
            call = ChatCompletionMessageFunctionToolCall(id="", type="function", function=function)
            self._tool_calls[number] = call
        call = self._tool_calls[number]
        call.id = call.id or part.id or ""
        if part.function:
            call.function.name = call.function.name or part.function.name or ""
            call.function.arguments += part.function.arguments or ""

    def end(self, content_type: str) -> None:
        """Take note that the answer has ended.

        Args:
            content_type: Of the server's response; empty if it has none.

        Raises:
            ValueError: If it was no stream of events.
            ConnectionError: If the model had not stopped.
        """
        if not self.began and content_type and "event-stream" not in content_type:
            raise ValueError(
                f"the server answered with {content_type}, not with a stream of events; "
                "does the client's base_url lead to an OpenAI-compatible API that streams?"
            )
        if self._finish_reason is None:
            raise ConnectionError("the connection was closed before the answer had ended")

    def close(self) -> None:
        """Stop the clock."""
        if self._ended is None:
            self._ended = time.perf_counter()

    @property
    def met_trouble(self) -> bool:
        """Whether it had no first token for a reason that others would meet now.

        Behind a server that does not answer, those who wait for one another would add up their time-outs.
        """
        return not self.began and self.error is not None and is_passing(self.error)

    @property
    def completion(self) -> Completion:
        """What has come back so far."""
        now = self._ended or time.perf_counter()
        sent = self._sent or now
        return Completion(
            "".join(self._texts),
            self._usage,
            self.plan,
            self._finish_reason,
            self.error,
            None if self._first_token is None else self._first_token - sent,
            now - sent,
            self._edits,
            tuple([call.model_copy(deep=True) for call in self._tool_calls.values()]),
        )
