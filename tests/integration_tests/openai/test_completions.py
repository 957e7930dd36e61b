"""Single requests: what goes out, what comes back, and what is done about it in bad weather."""

import asyncio
import json
import logging
import socket
from types import SimpleNamespace

import openai
import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Namespace, Outcome, restore
from contextpilot_integrations.engines import PLAIN, VLLM, Usage
from contextpilot_integrations.openai import AsyncCompletions, Completions

PLAIN_FIELDS = {"model", "messages", "stream", "stream_options"}
FULL = Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4)


def read_file(path):
    function = {"name": "read_file", "arguments": f'{{"path": "{path}"}}'}
    return {"id": f"call_{path}", "type": "function", "function": function}


def expected_cached(pilot, engine, blocks, **names):
    """How many leading blocks the pilot believes to be cached."""
    namespace = Namespace(endpoint=f"{engine.base_url}/", model="m", **names)
    return pilot.prepare(blocks, namespace=namespace).expected_cached_blocks


class TestWhatGoesOut:
    async def test_system_prompt_blocks_and_question(self, connect, engine, blocks):
        await connect(engine, preamble="Be brief.").complete(blocks("oak elm"), "Which?", max_tokens=5)
        [body] = engine.bodies
        assert body["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "[CB_oak] All about oak.\n\n[CB_elm] All about elm.\n\nWhich?"},
        ]
        assert body["max_tokens"] == 5

    async def test_the_annotation_stands_right_before_the_question(self, connect, engine, blocks):
        completions = connect(engine)
        await completions.complete(blocks("oak elm"), "Which?")
        completion = await completions.complete(blocks("elm oak"), "Which?")
        *_, annotation, question = engine.bodies[1]["messages"][0]["content"].split("\n\n")
        assert (annotation, question) == (completion.plan.order_annotation, "Which?")
        assert "[CB_elm] > [CB_oak]" in annotation

    async def test_without_blocks_the_question_alone(self, connect, engine):
        await connect(engine).complete([], "Why?")
        assert engine.bodies[0]["messages"] == [{"role": "user", "content": "Why?"}]

    async def test_ready_messages_go_out_as_they_are(self, connect, engine, pilot):
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "Why?"}]
        completion = await connect(engine, preamble="Be brief.").complete(messages=messages)
        assert engine.bodies[0]["messages"] == messages
        assert completion.text == "An answer."
        assert sum(pilot.outcomes.values()) == 0

    async def test_a_conversation_is_not_sent_twice(self, connect, engine, pilot):
        text = "\n".join(f"line {n} of a file that is read more than once" for n in range(99))
        read = [
            {"role": "assistant", "content": None, "tool_calls": [read_file("a.txt")]},
            {"role": "tool", "tool_call_id": "call_a.txt", "content": text},
        ]
        messages = [{"role": "user", "content": "Read it twice."}, *read, *read]
        completion = await connect(engine).complete(messages=messages)
        sent = engine.bodies[0]["messages"]
        assert sent[:4] == messages[:4]
        assert sent[4]["content"] == "Please refer to a.txt in the previous conversation."
        assert restore(sent, completion.edits) == messages
        await connect(engine).complete(messages=messages, rewrite=False)
        assert engine.bodies[1]["messages"] == messages

    async def test_a_conversations_first_blocks_are_aligned_and_taken_back(
        self, connect, start, blocks, pilot
    ):
        def conversation(names):
            text = "\n\n".join(block.render() for block in blocks(names))
            return {"blocks": blocks(names), "messages": [{"role": "user", "content": f"{text}\n\nWhich?"}]}

        engine = start("vLLM")
        await connect(engine).complete(**conversation("oak elm ash"))
        completion = await connect(engine).complete(**conversation("yew elm oak"))
        content = engine.bodies[1]["messages"][0]["content"]
        places = [content.index(f"[CB_{name}] All") for name in ("oak", "elm", "yew")]
        assert places == sorted(places)
        assert "[CB_yew] > [CB_elm] > [CB_oak] and answer the question.\n\nWhich?" in content
        assert completion.plan.expected_cached_blocks == 2
        assert pilot.evict(completion.plan.request_id, namespace=completion.plan.namespace)

    async def test_both_or_neither_is_refused(self, connect, engine, blocks):
        for given in ({}, {"question": "Why?", "messages": []}):
            with pytest.raises(ValueError, match="either blocks and a question, or messages"):
                await connect(engine).complete(**given)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"messages": 5}, "messages must be a list of messages, not int"),
            ({"messages": {"role": "user"}}, "messages must be a list of messages, not dict"),
            ({"blocks": ContextBlock("oak")}, "blocks must be an iterable of ContextBlock objects, not"),
            ({"question": "Why?", "model": "other"}, "model is set by the completions; leave it out"),
            ({"question": "Why?", "stream": False}, "stream is set by the completions; leave it out"),
        ],
    )
    async def test_what_cannot_be_sent_is_named(self, connect, engine, given, message):
        for rewrite in (True, False):
            with pytest.raises(TypeError, match=message):
                await connect(engine).complete(**given, rewrite=rewrite)
        with pytest.raises(TypeError, match="messages is set by the completions; leave it out"):
            await connect(engine).complete_batch([[]], ["Why?"], messages=[])

    @pytest.mark.parametrize(
        ("name", "fields"),
        [
            ("vLLM", {"request_id": "r1", "session_id": "s1", "cache_salt": "acme"}),
            ("SGLang", {"rid": "r1", "session_id": "s1", "cache_salt": "acme"}),
            ("llama.cpp", {}),
            ("plain", {}),
        ],
    )
    async def test_an_engine_gets_the_fields_that_it_knows(self, connect, start, blocks, name, fields):
        engine = start(name)
        await connect(engine).complete(
            blocks("oak"), "Which?", tenant="acme", request_id="r1", session_id="s1"
        )
        [body] = engine.bodies
        assert {field: body[field] for field in body.keys() - PLAIN_FIELDS} == fields

    async def test_no_tenant_no_salt(self, connect, engine, blocks):
        await connect(engine).complete(blocks("oak"), "Which?")
        assert "cache_salt" not in engine.bodies[0]

    async def test_the_callers_own_fields_stay(self, connect, engine):
        await connect(engine).complete([], "Why?", extra_body={"top_k": 1})
        assert engine.bodies[0]["top_k"] == 1
        assert "request_id" in engine.bodies[0]

    async def test_a_parameter_that_is_ours_is_refused(self, connect, engine):
        with pytest.raises(TypeError, match="stream"):
            await connect(engine).complete([], "Why?", stream=False)
        assert engine.bodies == []

    async def test_a_failing_plan_sends_the_original_order(self, connect, engine, blocks):
        def fails(text):
            raise RuntimeError("no tokenizer")

        pilot = ContextPilot(token_counter=fails, on_error="ignore")
        await connect(engine, pilot, context_window=3).complete(blocks("oak elm oak"), "Which?")
        assert pilot.outcomes[Outcome.FAILED] == 1
        content = engine.bodies[0]["messages"][0]["content"]
        assert [part.split()[0] for part in content.split("\n\n")[:-1]] == [
            "[CB_oak]",
            "[CB_elm]",
            "[CB_oak]",
        ]

    async def test_tenant_bs_prompts_are_what_they_would_be_had_a_never_existed(self, connect, start, blocks):
        requests = ["oak elm ash", "elm oak", "ash fir oak", "fir ash"]
        shared, alone = start(), start()
        both, only = connect(shared), connect(alone, ContextPilot())
        for words in requests:
            await both.complete(blocks(words)[::-1], "A?", tenant="a")
            await both.complete(blocks(words), "B?", tenant="b")
            await only.complete(blocks(words), "B?", tenant="b")
        bs = [body["messages"] for body in shared.bodies if body["cache_salt"] == "b"]
        assert bs == [body["messages"] for body in alone.bodies]
        # They would not be, were the two one:
        one = connect(mixed := start(), ContextPilot())
        for words in requests:
            await one.complete(blocks(words)[::-1], "A?", tenant="b")
            await one.complete(blocks(words), "B?", tenant="b")
        assert bs != [body["messages"] for body in mixed.bodies[1::2]]


def said(caplog):
    """What this package logged: clients of earlier tests that are collected now may complain meanwhile."""
    return [record for record in caplog.records if record.name.startswith("contextpilot_integrations")]


class TestWhatComesBack:
    async def test_text_usage_and_times(self, connect, engine, blocks):
        completion = await connect(engine).complete(blocks("oak"), "Which?")
        assert completion.text == "An answer."
        assert completion.usage == FULL
        assert completion.finish_reason == "stop"
        assert completion.error is None
        assert 0 < completion.ttft <= completion.duration

    async def test_a_stream_has_the_same_in_pieces(self, connect, engine, blocks):
        texts, completion = await connect(engine).read(blocks("oak"), "Which?")
        assert texts == ["An ", "answer."]
        assert (completion.text, completion.usage) == ("An answer.", FULL)

    async def test_tools_that_were_called_and_how_to_go_on(self, connect, engine, weather):
        call = read_file("a.txt")
        function = call["function"]
        parts = [
            {**call, "function": {**function, "arguments": ""}},
            *({"function": {"arguments": letter}} for letter in function["arguments"]),
        ]
        engine.weather["Read it."] = [
            weather(deltas=tuple({"tool_calls": [{"index": 0, **part}]} for part in parts))
        ]
        completions, messages = connect(engine), [{"role": "user", "content": "Read it."}]
        texts, completion = await completions.read(messages=messages)
        assert (texts, completion.text) == ([], "")
        assert [tool_call.model_dump() for tool_call in completion.tool_calls] == [call]
        messages += [
            completion.message,
            {"role": "tool", "tool_call_id": completion.tool_calls[0].id, "content": "An oak."},
        ]
        completion = await completions.complete(messages=messages)
        assert engine.bodies[1]["messages"][1] == {"role": "assistant", "content": "", "tool_calls": [call]}
        assert completion.message == {"role": "assistant", "content": "An answer."}

    @pytest.mark.parametrize("usage", [None, "missing"])
    async def test_no_usage_is_unknown_usage(self, connect, engine, weather, usage):
        engine.fine = weather(usage=usage)
        completion = await connect(engine).complete([], "Why?")
        assert (completion.text, completion.usage) == ("An answer.", Usage())

    @pytest.mark.parametrize(
        ("name", "flag"), [("vLLM", "--enable-prompt-tokens-details"), ("SGLang", "--enable-cache-report")]
    )
    async def test_missing_cached_tokens_name_the_flag_once(
        self, connect, start, weather, blocks, caplog, name, flag
    ):
        engine = start(name)
        engine.fine = weather(usage={"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11})
        completions = connect(engine)
        first = await completions.complete(blocks("oak"), "Which?")
        assert first.usage == Usage(9, 2, None)
        assert said(caplog) == []  # Nothing was expected: these engines leave out a 0.
        for _ in range(3):
            await completions.complete(blocks("oak"), "Which?")
        [record] = said(caplog)
        assert flag in record.getMessage()

    async def test_an_engine_that_told_once_is_not_suspected(self, connect, engine, weather, blocks, caplog):
        completions = connect(engine)
        await completions.complete(blocks("oak"), "Which?")
        engine.fine = weather(usage=None)
        await completions.complete(blocks("oak"), "Which?")
        assert said(caplog) == []

    @pytest.mark.parametrize(("name", "lines"), [("vLLM", 0), ("SGLang", 0), ("llama.cpp", 1), ("plain", 1)])
    async def test_an_engine_without_salt_is_named_once(self, connect, start, blocks, caplog, name, lines):
        completions = connect(start(name))
        await completions.complete(blocks("oak"), "Which?")
        assert said(caplog) == []
        for tenant in ("a", "b", "a"):
            await completions.complete(blocks("oak"), "Which?", tenant=tenant)
        assert all("knows no cache salt" in record.getMessage() for record in said(caplog))
        assert len(said(caplog)) == lines

    async def test_the_requests_id_is_evicted_whatever_the_engine_makes_of_it(
        self, connect, engine, pilot, blocks
    ):
        completion = await connect(engine).complete(blocks("oak"), "Which?")
        sent = engine.bodies[0]["request_id"]
        assert sent == completion.plan.request_id
        assert pilot.evict(sent, namespace=completion.plan.namespace)
        assert expected_cached(pilot, engine, blocks("oak")) == 0

    async def test_logs_hold_no_prompt_and_no_tenant(self, connect, start, weather, caplog):
        engine = start("plain")
        engine.weather["A secret?"] = [weather(500)]
        with caplog.at_level(logging.DEBUG, logger="contextpilot_integrations"):
            await connect(engine, preamble="secret").complete([], "A secret?", tenant="a secret tenant")
        ours = [record.getMessage() for record in said(caplog)]
        assert len(ours) == 1
        assert "secret" not in ours[0]


class TestClosingEarly:
    async def test_after_the_first_text(self, connect, engine, pilot, weather, blocks):
        engine.weather["Which?"] = [weather(deltas=({"content": "An "},) * 1000)]
        completions = connect(engine)
        texts, completion = await completions.read(blocks("oak"), "Which?", chunks=1)
        assert texts == ["An "]
        assert (completion.text, completion.finish_reason, completion.error) == ("An ", None, None)
        assert expected_cached(pilot, engine, blocks("oak")) == 1
        assert (await completions.complete(blocks("oak"), "Which?")).text == "An answer."

    async def test_before_anything_was_read(self, connect, engine, pilot, blocks):
        texts, completion = await connect(engine).read(blocks("oak"), "Which?", chunks=0)
        assert (texts, completion.text, completion.ttft) == ([], "", None)
        assert engine.bodies == []
        assert expected_cached(pilot, engine, blocks("oak")) == 0


class TestBadWeather:
    @pytest.mark.parametrize("status", [408, 429, 500, 503])
    async def test_what_passes_is_sent_again(self, connect, engine, weather, status):
        engine.weather["Why?"] = [weather(status), weather(status)]
        completion = await connect(engine).complete([], "Why?")
        assert completion.text == "An answer."
        assert len(engine.bodies) == 3
        assert len({body["request_id"] for body in engine.bodies}) == 1

    @pytest.mark.parametrize("max_retries", [0, 1, 3])
    async def test_as_often_as_the_client_says_and_no_more(self, connect, engine, weather, max_retries):
        engine.weather["Why?"] = [weather(503)] * 20
        with pytest.raises(openai.InternalServerError):
            await connect(engine, max_retries=max_retries).complete([], "Why?")
        assert len(engine.bodies) == 1 + max_retries

    @pytest.mark.parametrize("status", [400, 401, 404, 422])
    async def test_what_does_not_pass_is_not(self, connect, engine, weather, status):
        engine.weather["Why?"] = [weather(status)]
        with pytest.raises(openai.APIStatusError):
            await connect(engine).complete([], "Why?")
        assert len(engine.bodies) == 1

    async def test_an_unknown_model(self, connect, engine):
        with pytest.raises(openai.NotFoundError):
            await connect(engine, model="another").complete([], "Why?")

    @pytest.mark.parametrize("chunked", [True, False])
    @pytest.mark.parametrize("cut", [0, 1])
    async def test_a_connection_closed_before_the_first_token(self, connect, engine, weather, cut, chunked):
        engine.weather["Why?"] = [weather(cut=cut, chunked=chunked)]
        assert (await connect(engine).complete([], "Why?")).text == "An answer."
        assert len(engine.bodies) == 2

    @pytest.mark.parametrize("chunked", [True, False])
    async def test_a_connection_closed_after_it(self, connect, engine, pilot, weather, blocks, chunked):
        engine.weather["Which?"] = [weather(cut=2, chunked=chunked)]
        with pytest.raises(Exception, match=r"(?i)connection|peer closed"):
            await connect(engine).complete(blocks("oak"), "Which?")
        assert len(engine.bodies) == 1
        assert expected_cached(pilot, engine, blocks("oak")) == 1

    async def test_a_request_that_never_began_is_not_believed_to_be_cached(
        self, connect, engine, pilot, weather, blocks
    ):
        engine.weather["Which?"] = [weather(400)]
        with pytest.raises(openai.BadRequestError):
            await connect(engine).complete(blocks("oak"), "Which?")
        assert expected_cached(pilot, engine, blocks("oak")) == 0

    @pytest.mark.parametrize(
        "data",
        [b"{}", b"5", b"{broken", b"\xff", b'{"choices": [{"index": 0, "delta": {"content": 5}}]}'],
    )
    async def test_events_that_are_no_chunks(self, connect, engine, weather, data):
        engine.weather["Why?"] = [weather(body=b"data: " + data + b"\n\n")] * 3
        with pytest.raises(ConnectionError):
            await connect(engine).complete(question="Why?")

    async def test_a_last_chunk_without_delta(self, connect, engine, weather):
        chunks = [
            {"choices": [{"index": None, "delta": {"content": "Yes."}}]},
            {"choices": [{"index": 0, "finish_reason": "stop"}]},
        ]
        body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
        engine.weather["Why?"] = [weather(body=body)]
        completion = await connect(engine).complete(question="Why?")
        assert (completion.text, completion.finish_reason) == ("Yes.", "stop")

    async def test_a_page_instead_of_a_stream(self, connect, engine, weather):
        engine.weather["Why?"] = [weather(body=b"<html>log in</html>", content_type="text/html")]
        with pytest.raises(ValueError, match="answered with text/html, not with a stream of events"):
            await connect(engine).complete(question="Why?")
        assert len(engine.bodies) == 1

    async def test_a_server_that_is_down(self, connect, pilot, blocks):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # Nobody listens.
            down = SimpleNamespace(base_url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
            with pytest.raises(openai.APIConnectionError):
                await connect(down).complete(blocks("oak"), "Which?")
            assert expected_cached(pilot, down, blocks("oak")) == 0


class TestTheServer:
    async def test_is_asked_once(self, connect, engine):
        completions = connect(engine)
        for _ in range(3):
            await completions.complete([], "Why?")
        assert engine.listings == 1

    async def test_is_not_asked_where_the_engine_is_given(self, connect, engine):
        await connect(engine, engine=PLAIN).complete([], "Why?", tenant="acme")
        await connect(engine, engine=VLLM).complete([], "Why?", tenant="acme")
        assert engine.listings == 0
        assert [body.get("cache_salt") for body in engine.bodies] == [None, "acme"]

    async def test_that_lists_no_models_is_plain(self, connect, engine, weather):
        engine.listing = weather(404)
        completions = connect(engine)
        await completions.complete([], "Why?")
        await completions.complete([], "Why?")
        assert engine.bodies[0].keys() == PLAIN_FIELDS
        assert engine.listings == 1

    async def test_that_does_not_list_them_now_is_asked_again(self, connect, engine, weather):
        engine.listing = weather(503)
        completions = connect(engine)
        await completions.complete([], "Why?")
        engine.listing = weather()
        await completions.complete([], "Why?")
        assert ["request_id" in body for body in engine.bodies] == [False, True]

    async def test_no_tenant_goes_out_before_it_is_known(self, connect, engine, weather):
        engine.listing = weather(503)
        with pytest.raises(openai.InternalServerError):
            await connect(engine).complete([], "Why?", tenant="acme")
        assert engine.bodies == []
        assert engine.listings == 3

    @pytest.mark.parametrize("settings", [{}, {"context_window": 30}])
    async def test_a_prompt_longer_than_its_window_is_not_sent(self, connect, engine, blocks, settings):
        engine.card = {**engine.card, "max_model_len": 40 if settings else 30}
        pilot = ContextPilot(token_counter=len)
        completions = connect(engine, pilot, **settings)
        with pytest.raises(ValueError, match=r"has 35 tokens, but the context window of m is 30 tokens"):
            await completions.complete(blocks("larch"), "Which?")
        assert engine.bodies == []
        assert expected_cached(pilot, engine, blocks("larch")) == 0
        await completions.complete(blocks("o"), "Why?")

    async def test_an_estimate_refuses_nothing(self, connect, engine, blocks):
        await connect(engine, context_window=3).complete(blocks("larch"), "Which?")
        assert len(engine.bodies) == 1


async def test_a_hundred_tasks_share_one(engine, client, blocks):
    pilot = ContextPilot(on_error="raise")
    completions = AsyncCompletions(pilot, client(engine), model="m")
    words = [f"{n % 7} {n % 5} x{n}" for n in range(100)]
    found = await asyncio.gather(
        *(completions.complete(blocks(w), f"Q{n}?", tenant=f"t{n % 3}") for n, w in enumerate(words))
    )
    assert {completion.text for completion in found} == {"An answer."}
    assert sorted(engine.arrivals) == sorted(f"Q{n}?" for n in range(100))
    assert engine.listings == 1
    by_id = {body["request_id"]: body for body in engine.bodies}
    for n, completion in enumerate(found):
        body = by_id[completion.plan.request_id]
        assert body["cache_salt"] == f"t{n % 3}"
        assert f"All about x{n}." in body["messages"][0]["content"]


def test_the_client_must_be_of_the_right_kind(pilot):
    sync, asynchronous = openai.OpenAI(api_key="none"), openai.AsyncOpenAI(api_key="none")
    with pytest.raises(TypeError, match="AsyncCompletions takes"):
        Completions(pilot, asynchronous, model="m")
    with pytest.raises(TypeError, match="Completions takes"):
        AsyncCompletions(pilot, sync, model="m")
