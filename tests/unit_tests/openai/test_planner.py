"""What is made of a server that does not say what it is."""

import math

import httpx
import openai
import pytest

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.engines import PLAIN
from contextpilot_integrations.openai.planner import Planner


def make_planner(context_window):
    settings = {"preamble": "", "engine": None, "context_window": context_window, "follower": None}
    return Planner(ContextPilot(), "http://localhost:1/v1", model="m", **settings)


@pytest.fixture
def planner():
    return make_planner(None)


@pytest.mark.parametrize("tokens", [0, -1, math.nan])
def test_a_window_that_nothing_fits_in_is_refused(tokens):
    with pytest.raises(ValueError, match=f"context_window must be at least 1, got {tokens}"):
        make_planner(tokens)


def test_a_server_that_let_us_wait_is_not_asked_before_every_request(planner):
    too_late = openai.APITimeoutError(request=httpx.Request("GET", "http://localhost:1/v1/models"))
    assert planner.known_server("") is None
    assert planner.unrecognised(too_late, "").engine is PLAIN
    assert planner.known_server("").engine is PLAIN
    # Without a salt no tenant's prompt goes out, so that it is asked for them all the same.
    assert planner.known_server("acme") is None


def test_a_server_that_refused_at_once_is_asked_again(planner):
    refused = openai.APIConnectionError(request=httpx.Request("GET", "http://localhost:1/v1/models"))
    assert planner.unrecognised(refused, "").engine is PLAIN
    assert planner.known_server("") is None


def test_the_list_of_models_is_waited_for_no_longer_than_an_answer(planner):
    assert planner.models_timeout(0.5) == 0.5
    assert planner.models_timeout(600) == planner.models_timeout(httpx.Timeout(9)) == 5.0
