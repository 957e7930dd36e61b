"""Clients of an Elasticsearch server, and what their errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

from elasticsearch import (
    ApiError,
    AsyncElasticsearch,
    ConnectionTimeout,
    Elasticsearch,
    SSLError,
    TransportError,
    UnsupportedProductError,
)
from elasticsearch import ConnectionError as UnreachableError
from pydantic import SecretStr

__all__ = ["Target", "connect", "connect_async", "explained", "failure"]

Secret = str | SecretStr
Target = Elasticsearch | AsyncElasticsearch


def connect(
    url: str | Sequence[str],
    *,
    api_key: Secret | None = None,
    basic_auth: tuple[str, Secret] | None = None,
    ca_certs: str | None = None,
    timeout: float = 30.0,
    max_retries: int = 3,
    **options: Any,
) -> Elasticsearch:
    """Return a client; nothing is sent yet. Close it when done, or use it in a ``with`` statement.

    A request that fails in a way that can pass (no connection, no answer in time, 429, 502, 503, 504) is sent
    again, after a growing pause where the client's version can make one.

    Args:
        url: Where the server is, such as ``https://localhost:9200``; several for several nodes.
        api_key: A base64-encoded key, as the server gives it out.
        basic_auth: A user's name and password.
        ca_certs: The file of the authority that signed the server's certificate, where that is one's own.
        timeout: Seconds to wait for an answer, each time.
        max_retries: How often a request is sent again.
        options: What else ``elasticsearch.Elasticsearch`` takes, such as ``ssl_assert_fingerprint``.

    Raises:
        ValueError: If the URL has no scheme, host or port, or holds credentials; if both an API key and a
            password are given; if the time-out is not positive, or the number of retries negative.
    """
    settings = _settings(url, api_key, basic_auth, ca_certs, timeout, max_retries)
    return Elasticsearch(url, **{**settings, **options})


def connect_async(
    url: str | Sequence[str],
    *,
    api_key: Secret | None = None,
    basic_auth: tuple[str, Secret] | None = None,
    ca_certs: str | None = None,
    timeout: float = 30.0,
    max_retries: int = 3,
    **options: Any,
) -> AsyncElasticsearch:
    """Return a client for asyncio, as `connect` does. It belongs to the event loop that first uses it."""
    settings = _settings(url, api_key, basic_auth, ca_certs, timeout, max_retries)
    return AsyncElasticsearch(url, **{**settings, **options})


def _settings(
    url: str | Sequence[str],
    api_key: Secret | None,
    basic_auth: tuple[str, Secret] | None,
    ca_certs: str | None,
    timeout: float,
    max_retries: int,
) -> dict[str, Any]:
    for one in [url] if isinstance(url, str) else url:
        # The client would repeat such credentials in the reprs of its nodes.
        if urlsplit(one).username is not None:
            raise ValueError("url must not hold credentials: pass them as api_key or basic_auth")
    if api_key is not None and basic_auth is not None:
        raise ValueError("api_key and basic_auth exclude each other: pass one of them")
    if timeout <= 0:
        raise ValueError(f"timeout must be positive, got {timeout}")
    if max_retries < 0:
        raise ValueError(f"max_retries must be at least 0, got {max_retries}")
    settings: dict[str, Any] = {
        "request_timeout": timeout,
        "max_retries": max_retries,
        "retry_on_timeout": True,
        "retry_on_status": (429, 502, 503, 504),
    }
    if "retry_backoff_base" in signature(Elasticsearch).parameters:
        settings |= {"retry_backoff_base": 0.2, "retry_backoff_cap": 10.0}
    if api_key is not None:
        settings["api_key"] = _revealed(api_key)
    if basic_auth is not None:
        settings["basic_auth"] = (basic_auth[0], _revealed(basic_auth[1]))
    if ca_certs is not None:
        settings["ca_certs"] = ca_certs
    return settings


def _revealed(secret: Secret) -> str:
    return secret.get_secret_value() if isinstance(secret, SecretStr) else secret


@contextmanager
def explained(client: Target, index: str) -> Iterator[None]:
    """Raise what the client raises as a builtin error that says what to do.

    Raises:
        ConnectionError: The server cannot be reached, is overloaded (429) or not available (502, 503, 504).
        TimeoutError: It did not answer in time.
        PermissionError: It does not know the credentials (401) or their privileges do not suffice (403).
        LookupError: There is no such index (404).
        ValueError: It refuses the request as wrong, or is no Elasticsearch, or of a version too old.
        RuntimeError: Anything else.
    """
    try:
        yield
    except UnsupportedProductError as error:
        raise ValueError(
            f"what answers at {_place(client)} is not Elasticsearch: correct the URL; "
            "OpenSearch and other relatives need clients of their own"
        ) from error
    except ApiError as error:
        raise failure(error.meta.status, error.body, client, index) from error
    except ConnectionTimeout as error:
        raise TimeoutError(
            f"no answer from {_place(client)} in time: raise connect's timeout, or ask less at once"
        ) from error
    except SSLError as error:
        raise ConnectionError(
            f"no secure connection to {_place(client)}: pass the authority that signed its certificate as "
            "connect's ca_certs; where the server has no TLS, use http:// in the URL"
        ) from error
    except UnreachableError as error:
        raise ConnectionError(
            f"cannot reach {_place(client)}: start the server, or correct host, port and scheme of the URL"
        ) from error
    except TransportError as error:
        raise RuntimeError(f"the exchange with {_place(client)} failed: {error}") from error


def failure(status: int, body: Any, client: Target, index: str) -> Exception:
    """Return the error that an answer of the server stands for, as `explained` raises it.

    Args:
        status: The HTTP status, of the whole answer or of one part.
        body: What it holds, with the reason under "error" if it is one of Elasticsearch.
        client: Who asked.
        index: Which index was asked.
    """
    place = _place(client)
    kind, reason = _reason(body)
    told = f" ({kind}: {reason})" if kind else ""
    match status:
        case 401:
            return PermissionError(
                f"{place} does not accept the credentials (401): pass connect a valid api_key or basic_auth"
            )
        case 403:
            return PermissionError(
                f"the credentials do not allow this on index {index!r} at {place} (403): grant them read, "
                f"and for adding documents create_index, write and view_index_metadata{told}"
            )
        case 404 if kind == "index_not_found_exception":
            return LookupError(
                f"there is no index {index!r} at {place} (404): correct its name, or add documents, "
                "which creates it"
            )
        case 404:
            return LookupError(f"{place} has no such API (404): correct the path of the URL{told}")
        case 413:
            return ValueError(f"the request is too large for {place} (413): ask or add fewer at once")
        case 429:
            return ConnectionError(
                f"{place} is overloaded (429): ask less at once, later, or raise connect's max_retries{told}"
            )
        case 502 | 503 | 504:
            return ConnectionError(
                f"{place} is not available ({status}): wait until it has started and index {index!r} has "
                f"recovered, or raise connect's max_retries{told}"
            )
        case 400 if kind == "media_type_header_exception":
            return ValueError(
                f"the server at {place} is older than this client: install elasticsearch of the server's "
                "major version, such as 'elasticsearch<9'"
            )
        case 400:
            return ValueError(f"{place} refuses the request as wrong (400){told}")
        case _:
            return RuntimeError(f"{place} answered with status {status}{told}")


def _reason(body: Any) -> tuple[str, str]:
    """Return the type of an error and its reason, which may quote the query but no document."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "", ""
    causes = error.get("root_cause") or [error]
    cause = causes[0] if isinstance(causes[0], Mapping) else error
    reason = str(cause.get("reason", "")).partition(" Preview of field's value")[0]
    return str(error.get("type", "")), reason


def _place(client: Target) -> str:
    return ", ".join(sorted(node.base_url for node in client.transport.node_pool.all()))
