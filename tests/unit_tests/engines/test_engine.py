"""What each engine is told of a request, in its own words."""

import pytest

from contextpilot_integrations.engines import LLAMA_CPP, PLAIN, SGLANG, VLLM

REQUEST = {"request_id": "r1", "session_id": "s1", "tenant": "acme"}


def test_each_engine_has_its_own_fields():
    assert VLLM.extra_body(**REQUEST) == {"request_id": "r1", "session_id": "s1", "cache_salt": "acme"}
    assert SGLANG.extra_body(**REQUEST) == {"rid": "r1", "session_id": "s1", "cache_salt": "acme"}


@pytest.mark.parametrize("engine", [LLAMA_CPP, PLAIN])
def test_an_engine_that_knows_none_gets_none(engine):
    assert engine.extra_body(**REQUEST) == {}


def test_an_empty_salt_is_not_sent():
    assert VLLM.extra_body(request_id="r1") == {"request_id": "r1"}
