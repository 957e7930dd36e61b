import pytest
from langchain_core.messages import AIMessage, AIMessageChunk

from contextpilot_integrations.engines import Usage
from contextpilot_integrations.langchain import read_usage


def message(details=None):
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105}
    if details is not None:
        usage["input_token_details"] = details
    return AIMessage("answer", usage_metadata=usage)


@pytest.mark.parametrize("key", ["cache_read", "priority_cache_read", "flex_cache_read"])
def test_the_count_under_each_service_tier(key):
    assert read_usage(message({key: 64})) == Usage(100, 5, 64)
    assert read_usage(message({key: 0})) == Usage(100, 5, 0)


def test_an_absent_count_is_unknown():
    assert read_usage(message()) == Usage(100, 5, None)
    assert read_usage(message({})) == Usage(100, 5, None)
    assert read_usage(message({"audio": 3})) == Usage(100, 5, None)
    assert read_usage(AIMessage("answer")) == Usage(None, None, None)


def test_a_streams_chunks_add_up():
    usage = {"input_tokens": 100, "output_tokens": 5, "total_tokens": 105}
    chunks = [AIMessageChunk("an"), AIMessageChunk("swer")]
    last = AIMessageChunk("", usage_metadata={**usage, "input_token_details": {"cache_read": 64}})
    assert read_usage(chunks[0] + chunks[1] + last) == Usage(100, 5, 64)
    assert read_usage(chunks[0] + AIMessageChunk("", usage_metadata=usage)) == Usage(100, 5, None)
    assert read_usage(chunks[0] + chunks[1]) == Usage()


def test_what_langchain_openai_makes_of_an_engines_report():
    base = pytest.importorskip("langchain_openai.chat_models.base")
    report = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
    for tier in (None, "priority", "flex"):
        for details, expected in (({"cached_tokens": 64}, 64), ({"cached_tokens": 0}, 0), (None, None)):
            try:
                usage = base._create_usage_metadata({**report, "prompt_tokens_details": details}, tier)
            except TypeError:  # Older ones fail where an engine tells a tier.
                assert tier
                continue
            assert read_usage(AIMessage("answer", usage_metadata=usage)).cached_tokens == expected
