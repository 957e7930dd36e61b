"""A step in front of a model: what the model can see already is not sent again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import RunnableConfig, RunnableSerializable

from contextpilot_integrations.langchain.messages import rewrite_messages
from contextpilot_integrations.langchain.planning import Planning

__all__ = ["ContextPilotRewriter"]


class ContextPilotRewriter(Planning, RunnableSerializable[LanguageModelInput, list[BaseMessage]]):
    """Rewrites the messages that go to a chat model: ``prompt | ContextPilotRewriter() | model``.

    In retrieved blocks and in what tools returned, text that stands in the messages before gives way to an
    annotation that says where; blocks that no answer stands before are put in the order that the prefix
    cache likes. The messages alone decide what the model can see, so no session's id and no handler are
    needed, and a history may be cut in front of this step in any way. Let it be the last step in front of
    the model, and keep the original messages as the history.

    It takes what a chat model takes (a prompt value, messages, a str) and gives the list of messages:
    those given where nothing changed, else copies with other texts. A batch is rewritten in the order
    given.

    ``preamble`` is what stands before the first message: the definitions of the model's tools.

    To load one: ``loads(text, allowed_objects=[ContextPilotRewriter],
    valid_namespaces=["contextpilot_integrations"])``.

    Raises:
        TypeError: If an input is nothing that a chat model takes.
    """

    def invoke(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[BaseMessage]:
        """Rewrite one request's messages."""
        return self._call_with_config(self._rewrite, input, config)

    async def ainvoke(
        self, input: LanguageModelInput, config: RunnableConfig | None = None, **kwargs: Any
    ) -> list[BaseMessage]:
        """Rewrite as `invoke` does; there is nothing to wait for, so it runs in the loop."""
        return await self._acall_with_config(self._arewrite, input, config)

    def batch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[BaseMessage]]:
        """Rewrite requests one after another: in threads, chance would decide which comes first."""
        return self._batch_with_config(self._rewrite_all, inputs, config, return_exceptions=return_exceptions)

    async def abatch(
        self,
        inputs: list[LanguageModelInput],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[list[BaseMessage]]:
        """Rewrite a batch as `batch` does."""
        return await self._abatch_with_config(
            self._arewrite_all, inputs, config, return_exceptions=return_exceptions
        )

    def _rewrite(self, given: LanguageModelInput) -> list[BaseMessage]:
        return rewrite_messages(_messages(given), pilot=self.pilot, namespace=self.namespace)

    async def _arewrite(self, given: LanguageModelInput) -> list[BaseMessage]:
        return self._rewrite(given)

    def _rewrite_all(self, inputs: list[LanguageModelInput]) -> list[Exception | list[BaseMessage]]:
        results: list[Exception | list[BaseMessage]] = []
        for given in inputs:
            try:
                results.append(self._rewrite(given))
            except Exception as error:
                results.append(error)
        return results

    async def _arewrite_all(self, inputs: list[LanguageModelInput]) -> list[Exception | list[BaseMessage]]:
        return self._rewrite_all(inputs)


def _messages(given: LanguageModelInput) -> list[BaseMessage]:
    if isinstance(given, PromptValue):
        return given.to_messages()
    if isinstance(given, str):
        return [HumanMessage(given)]
    if isinstance(given, Sequence):
        return convert_to_messages(given)
    raise TypeError(f"input must be a prompt value, messages or a str, not {type(given).__name__}")
