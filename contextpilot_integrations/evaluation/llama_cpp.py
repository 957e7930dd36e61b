"""What a model on llama.cpp makes of a given answer: its log-likelihood, without generating anything.

The endpoints are llama.cpp's own, beside its OpenAI-compatible ones; no other engine has them. Source: the
README of llama.cpp's server (tools/server), sections "POST /apply-template", "POST /tokenize" and "POST
/completion".
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

__all__ = ["LlamaCppClient"]

_FORCED = 1000.0
_TIMEOUT = 600.0  # Seconds: on a busy CPU a long prompt takes its time.


class LlamaCppClient:
    """Asks one llama.cpp server.

    Args:
        base_url: The server's address, with or without the ``/v1`` of its OpenAI API.

    Raises:
        ImportError: If httpx is not installed.

    Example:
        >>> with LlamaCppClient(server.base_url) as client:  # doctest: +SKIP
        ...     prompt = client.prompt_tokens("Answer briefly.", "The fare is 9 crowns. What is the fare?")
        ...     sum(client.log_likelihoods(prompt, client.answer_tokens("9 crowns")))
    """

    def __init__(self, base_url: str) -> None:
        try:
            import httpx
        except ImportError as error:
            raise ImportError(
                "asking llama.cpp for likelihoods needs httpx; install it with: "
                'pip install "contextpilot-integrations[demo]"'
            ) from error
        self.base_url = base_url.rstrip("/").removesuffix("/v1")
        self._failures = httpx.HTTPError, httpx.InvalidURL
        # The address is asked directly, whatever proxy the environment names.
        self._http = httpx.Client(timeout=_TIMEOUT, trust_env=False)

    def __enter__(self) -> LlamaCppClient:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._http.close()

    def model(self) -> str:
        """Return the name under which the server offers its model.

        Raises:
            OSError: If the server cannot be reached or is no llama.cpp.
        """
        return str(self._asked("GET", "/props")["model_alias"])

    def prompt_tokens(self, system: str, user: str) -> list[int]:
        """Return the tokens of a chat of two messages, up to where the model's answer begins.

        Raises:
            OSError: If the server cannot be reached or refuses.
        """
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        text = self._asked("POST", "/apply-template", messages=messages)["prompt"]
        return self._tokens(text, add_special=True, parse_special=True)

    def answer_tokens(self, text: str) -> list[int]:
        """Return the tokens of an answer, or of any other text, as they stand after the prompt's.

        Raises:
            OSError: If the server cannot be reached or refuses.
        """
        return self._tokens(text, add_special=False, parse_special=False)

    def log_likelihoods(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        """Return the log-probability that the model gives each token of an answer after those before it.

        Each token is forced by a bias so large that it is drawn whatever the model prefers. What the server
        then reports as its log-probability is the model's own: it is taken from the logits before any
        sampler, and so before the bias. All but one token are found cached each time.

        Args:
            prompt: The prompt's tokens, shape (prompt tokens,).
            answer: The answer's, shape (answer tokens,).

        Returns:
            Natural logarithms, shape (answer tokens,).

        Raises:
            OSError: If the server cannot be reached, refuses or draws another token.
        """
        tokens = list(prompt)
        found = []
        for token in answer:
            drawn = self._asked(
                "POST",
                "/completion",
                prompt=tokens,
                n_predict=1,
                temperature=0,
                n_probs=1,
                logit_bias=[[token, _FORCED]],
                cache_prompt=True,
            )["completion_probabilities"][0]
            if drawn["id"] != token:
                raise OSError(f"{self.base_url}: drew token {drawn['id']} where {token} was forced")
            found.append(float(drawn["logprob"]))
            tokens.append(token)
        return found

    def complete(self, prompt: Sequence[int], *, max_tokens: int) -> str:
        """Return what the model answers when it takes the most probable token each time.

        Raises:
            OSError: If the server cannot be reached or refuses.
        """
        return str(
            self._asked(
                "POST",
                "/completion",
                prompt=list(prompt),
                n_predict=max_tokens,
                temperature=0,
                cache_prompt=True,
            )["content"]
        )

    def _tokens(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        return list(
            self._asked(
                "POST", "/tokenize", content=text, add_special=add_special, parse_special=parse_special
            )["tokens"]
        )

    def _asked(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        try:
            answer = self._http.request(method, f"{self.base_url}{path}", json=body or None)
        except self._failures as error:
            raise OSError(f"{self.base_url}: cannot be reached: {error}") from error
        if answer.status_code == 404:
            raise OSError(f"{self.base_url} has no {path}: likelihoods need a llama.cpp server")
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not answer.is_success or not isinstance(found, dict):
            raise OSError(f"{self.base_url}{path}: {answer.status_code}: {_reason(found, answer.text)}")
        return found


def _reason(found: object, text: str) -> str:
    error = found.get("error") if isinstance(found, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return " ".join(str(message or text or "no answer").split())[:200]
