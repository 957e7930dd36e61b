"""What is tried again, and after how long."""

import importlib
from email.utils import formatdate

import openai
import pytest

from contextpilot_integrations.openai import retries
from contextpilot_integrations.openai.retries import is_passing, retry_delay

# Version 3 of the client has its own transport, and lets none of its errors through.
httpx = importlib.import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])
REQUEST = httpx.Request("POST", "http://localhost")


def status_error(status, **headers):
    response = httpx.Response(
        status, request=REQUEST, headers={name.replace("_", "-"): v for name, v in headers.items()}
    )
    return openai.APIStatusError("bad weather", response=response, body=None)


@pytest.mark.parametrize(
    "error",
    [
        openai.APIConnectionError(request=REQUEST),
        openai.APITimeoutError(request=REQUEST),
        ConnectionResetError(),
        *([httpx.RemoteProtocolError("peer closed connection")] if httpx.__name__ == "httpx" else []),
        *map(status_error, (408, 429, 500, 502, 503, 504)),
    ],
    ids=repr,
)
def test_what_passes(error):
    assert is_passing(error)
    assert retry_delay(error, 0) > 0


@pytest.mark.parametrize(
    "error",
    [*map(status_error, (400, 401, 403, 404, 413, 422, 501)), ValueError("too long"), openai.APIError],
    ids=repr,
)
def test_what_does_not(error):
    if error is openai.APIError:
        error = openai.APIError("within the stream", REQUEST, body=None)
    assert not is_passing(error)
    assert retry_delay(error, 0) is None


def test_the_delay_doubles_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(retries.random, "uniform", lambda low, high: high)
    delays = [retry_delay(status_error(503), attempt) for attempt in range(7)]
    assert delays == [0.5, 1, 2, 4, 8, 8, 8]


def test_chance_takes_off_up_to_a_quarter():
    assert all(0.375 <= retry_delay(status_error(503), 0) <= 0.5 for _ in range(100))


@pytest.mark.parametrize(("asked", "delay"), [("7", 7), ("0.25", 0.25), ("0", 0), ("-3", 0), ("60", 60)])
def test_what_the_server_asks_for(asked, delay):
    assert retry_delay(status_error(429, retry_after=asked), 3) == delay


def test_a_date(monkeypatch):
    monkeypatch.setattr(retries.time, "time", lambda: 1_000_000_000.0)
    later = formatdate(1_000_000_030, usegmt=True)
    assert retry_delay(status_error(503, retry_after=later), 0) == 30
    assert retry_delay(status_error(503, retry_after=formatdate(0, usegmt=True)), 0) == 0


@pytest.mark.parametrize("asked", ["61", "inf", formatdate(4_000_000_000, usegmt=True)])
def test_more_than_a_minute_is_not_waited_for(asked):
    assert is_passing(status_error(429, retry_after=asked))
    assert retry_delay(status_error(429, retry_after=asked), 0) is None


@pytest.mark.parametrize("asked", ["", "soon"])
def test_what_is_neither_seconds_nor_a_date_asks_for_nothing(asked):
    assert 0 < retry_delay(status_error(429, retry_after=asked), 0) <= 0.5
