"""Which failures are worth another try, and when."""

from __future__ import annotations

import random
import time
from email.utils import mktime_tz, parsedate_tz

import openai

__all__ = ["is_passing", "retry_delay"]

FIRST_DELAY = 0.5
LONGEST_DELAY = 8.0
LONGEST_RETRY_AFTER = 60.0
# Overloaded, starting or restarting: request timeout, too many requests, server errors of the moment.
_STATUSES = {408, 429, 500, 502, 503, 504}


def is_passing(error: Exception) -> bool:
    """Tell whether a request may succeed later that failed so."""
    if isinstance(error, openai.APIStatusError):
        return error.status_code in _STATUSES
    # Version 2 of the client lets its transport's own errors through where a stream breaks.
    of_transport = type(error).__module__.partition(".")[0] in {"httpx", "httpcore"}
    return of_transport or isinstance(error, openai.APIConnectionError | ConnectionError)


def retry_delay(error: Exception, attempt: int) -> float | None:
    """Return how many seconds to wait before sending a request again of which no token has come back.

    What the server asks for in ``Retry-After``; otherwise half a second, doubled with each attempt up to
    8 seconds, less up to a quarter by chance, so that clients do not come back all at once.

    Args:
        error: Why the attempt failed.
        attempt: Its number, counted from 0.

    Returns:
        The delay; None where another try would fail as well, or the server asks for more than a minute.
    """
    if not is_passing(error):
        return None
    if isinstance(error, openai.APIStatusError):
        asked = _seconds(error.response.headers.get("retry-after", ""))
        if asked is not None:
            return asked if asked <= LONGEST_RETRY_AFTER else None
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0**attempt) * random.uniform(0.75, 1.0)


def _seconds(retry_after: str) -> float | None:
    """Read a header that holds seconds or a date; None where it holds neither."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        date = parsedate_tz(retry_after)
        return None if date is None else max(0.0, mktime_tz(date) - time.time())
