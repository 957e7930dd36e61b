"""Cached-token counts: what engines report, in each form they have, and what they leave out."""

import pytest

from contextpilot_integrations.engines import Usage, UsageStream, read_usage

VLLM = {
    "id": "chatcmpl-1",
    "choices": [],
    "usage": {
        "prompt_tokens": 2030,
        "completion_tokens": 16,
        "total_tokens": 2046,
        "prompt_tokens_details": {"cached_tokens": 1016},
    },
}
WITHOUT_THE_FLAG = {"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": None}}
LLAMA_TIMINGS = {"timings": {"cache_n": 236, "prompt_n": 1, "predicted_n": 35}}


def test_reads_a_mapping():
    assert read_usage(VLLM) == Usage(prompt_tokens=2030, completion_tokens=16, cached_tokens=1016)


def test_reads_the_openai_clients_objects():
    chat = pytest.importorskip("openai.types.chat")
    completion = chat.ChatCompletion.model_validate(
        {**VLLM, "created": 0, "model": "m", "object": "chat.completion"}
    )
    assert read_usage(completion) == Usage(2030, 16, 1016)


def test_reads_extra_fields_of_the_openai_clients_objects():
    chat = pytest.importorskip("openai.types.chat")
    completion = chat.ChatCompletion.model_validate(
        {"id": "1", "choices": [], "created": 0, "model": "m", "object": "chat.completion", **LLAMA_TIMINGS}
    )
    assert read_usage(completion) == Usage(237, 35, 236)


def test_an_absent_count_is_unknown():
    assert read_usage(WITHOUT_THE_FLAG) == Usage(9, 1, None)
    assert read_usage({"usage": {"prompt_tokens": 9, "completion_tokens": 1}}).cached_tokens is None


def test_a_count_of_zero_is_zero():
    assert read_usage({"usage": {"prompt_tokens_details": {"cached_tokens": 0}}}).cached_tokens == 0
    assert read_usage({"timings": {"cache_n": 0, "prompt_n": 7}}) == Usage(7, None, 0)


def test_llama_cpp_reports_in_timings_too():
    assert read_usage(LLAMA_TIMINGS) == Usage(237, 35, 236)
    both = {**LLAMA_TIMINGS, "usage": {"prompt_tokens_details": {"cached_tokens": 0}}}
    assert read_usage(both).cached_tokens == 0


@pytest.mark.parametrize(
    "response", [None, "text", 3, {}, {"usage": None}, {"usage": "none"}, {"usage": {"prompt_tokens": "9"}}]
)
def test_what_holds_no_counts(response):
    assert read_usage(response) == Usage(None, None, None)


CHUNKS = [{"choices": [1], "usage": None}, {"choices": [2]}, VLLM]


def test_a_stream_passes_through():
    stream = UsageStream(iter(CHUNKS))
    assert stream.usage == Usage()
    assert list(stream) == CHUNKS
    assert stream.usage == Usage(2030, 16, 1016)


def test_a_stream_is_not_read_ahead():
    read = []

    def chunks():
        for chunk in CHUNKS:
            read.append(chunk)
            yield chunk

    stream = iter(UsageStream(chunks()))
    assert read == []
    next(stream)
    assert len(read) == 1


def test_the_last_counts_win():
    stream = UsageStream([VLLM, WITHOUT_THE_FLAG, {"usage": None}])
    assert len(list(stream)) == 3
    assert stream.usage == Usage(9, 1, None)


def test_a_streams_error_goes_through():
    def chunks():
        yield VLLM
        raise ConnectionError("gone")

    stream = UsageStream(chunks())
    with pytest.raises(ConnectionError, match="gone"):
        list(stream)
    assert stream.usage.cached_tokens == 1016


def test_closing_reaches_the_stream():
    closed = []

    def chunks():
        try:
            yield from CHUNKS
        finally:
            closed.append(True)

    stream = iter(UsageStream(chunks()))
    next(stream)
    stream.close()
    del stream
    assert closed == [True]


async def test_an_asynchronous_stream():
    async def chunks():
        for chunk in CHUNKS:
            yield chunk

    stream = UsageStream(chunks())
    assert [chunk async for chunk in stream] == CHUNKS
    assert stream.usage == Usage(2030, 16, 1016)


async def test_the_wrong_kind_of_loop():
    async def chunks():
        yield VLLM

    with pytest.raises(TypeError, match="async for"):
        list(UsageStream(chunks()))
    with pytest.raises(TypeError, match="`for`"):
        async for _ in UsageStream([VLLM]):
            pass
