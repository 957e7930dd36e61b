"""What inference engines call things: the fields of a request that OpenAI's API does not have."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LLAMA_CPP", "PLAIN", "SGLANG", "VLLM", "Engine"]


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine behind an OpenAI-compatible API. A field that is None is not known there, and never sent.

    Attributes:
        name: What to call it in messages.
        request_id_field: The body's field for the id under which the engine knows a request.
        session_id_field: The body's field for the conversation that a request belongs to.
        salt_field: The body's field whose value two requests must share to share cached blocks.
        cached_tokens_flag: The server's option without which no answer tells its cached tokens.
        tokenizes_messages: Whether ``POST /tokenize`` gives the tokens that a chat's messages become.
    """

    name: str
    request_id_field: str | None = None
    session_id_field: str | None = None
    salt_field: str | None = None
    cached_tokens_flag: str | None = None
    tokenizes_messages: bool = False

    def extra_body(self, *, request_id: str = "", session_id: str = "", tenant: str = "") -> dict[str, str]:
        """Return what this engine takes of these in a request's body; what is empty is left out."""
        fields = {
            self.request_id_field: request_id,
            self.session_id_field: session_id,
            self.salt_field: tenant,
        }
        return {field: value for field, value in fields.items() if field and value}


# vllm/entrypoints/openai: ChatCompletionRequest, TokenizeChatRequest. An empty salt is refused.
VLLM = Engine("vLLM", "request_id", "session_id", "cache_salt", "--enable-prompt-tokens-details", True)
# sglang/srt/entrypoints/openai/protocol.py: ChatCompletionRequest, TokenizeRequest.
SGLANG = Engine("SGLang", "rid", "session_id", "cache_salt", "--enable-cache-report", True)
# Tells cached tokens unasked, gives out its own request ids, and knows no salt.
LLAMA_CPP = Engine("llama.cpp")
PLAIN = Engine("an unknown OpenAI-compatible engine")
