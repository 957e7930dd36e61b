import re
from itertools import pairwise

import pytest
from llama_index.core import Settings
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import TextNode
from llama_index.core.utils import get_tokenizer

from contextpilot_integrations import ContextPilot, Outcome
from contextpilot_integrations.llama_index import ContextPilotChatEngine, ContextPilotPostprocessor

SYSTEM = "Answer from the pages."
QUESTIONS = [f"{n % 10}{(n + 1) % 10}{n * 3 % 10}: question {n}?" for n in range(24)]
HOW = ["chat", "achat", "stream_chat", "astream_chat"]


@pytest.fixture
def make_engine(retriever, llm):
    def make(**settings):
        # Messages that the tests count by themselves: no window.
        settings.setdefault("memory", ChatMemoryBuffer.from_defaults(token_limit=100_000))
        settings.setdefault("system_prompt", SYSTEM)
        settings.setdefault("llm", llm)
        return ContextPilotChatEngine.from_defaults(settings.pop("retriever", retriever), **settings)

    return make


async def say(engine, message, how="chat", **kwargs):
    if how == "chat":
        return engine.chat(message, **kwargs)
    if how == "achat":
        return await engine.achat(message, **kwargs)
    if how == "stream_chat":
        response = engine.stream_chat(message, **kwargs)
        assert "".join(response.response_gen) == "an answer"
        return response
    response = await engine.astream_chat(message, **kwargs)
    assert "".join([text async for text in response.async_response_gen()]) == "an answer"
    return response


def text(number):
    return f"The text of page {number}. It goes on about bicycles, what they cost, and who may hire one."


def whole(number):
    return f"[CB_{number}] {text(number)}"


def named(number):
    return f"Please refer to [CB_{number}] in the previous conversation."


def contents(messages):
    return [message.content for message in messages]


def tokens(text):
    return len(get_tokenizer()(text))


def size(messages):
    return sum(map(tokens, contents(messages)))


class TestWhatIsSent:
    @pytest.mark.parametrize("how", HOW)
    async def test_each_turn_has_its_context_behind_the_history(self, make_engine, llm, how):
        engine = make_engine()
        await say(engine, "124: What?", how)
        await say(engine, "152: And what?", how)
        first, second = llm.prompts
        assert [message.role.value for message in second] == ["system", "user", "assistant", "user"]
        assert contents(first) == [SYSTEM, "\n\n".join([whole(1), whole(2), whole(4), "124: What?"])]
        assert second[:2] == first
        assert contents(second)[2:] == [
            "an answer",
            "\n\n".join([named(1), whole(5), named(2), "152: And what?"]),
        ]

    @pytest.mark.parametrize("how", HOW)
    async def test_what_was_sent_is_sent_again_as_it_was(self, make_engine, llm, how):
        engine = make_engine()
        for question in ("124: a?", "152: b?", "999: c?", ": d?", "241: e?"):
            await say(engine, question, how)
        for before, after in zip(llm.prompts, llm.prompts[1:], strict=False):
            assert contents(after)[: len(before)] == contents(before)
        assert len(llm.prompts) == 5

    async def test_a_first_turn_is_put_in_the_order_that_another_one_left_cached(self, make_engine, llm):
        pilot = ContextPilot()
        make_engine(pilot=pilot).chat("124: a?")
        make_engine(pilot=pilot).chat("421: b?")
        order = "priority order: [CB_4] > [CB_2] > [CB_1] and answer the question."
        *blocks, annotation, question = llm.prompts[1][1].content.split("\n\n")
        assert blocks == [whole(1), whole(2), whole(4)]
        assert annotation.endswith(order)
        assert question == "421: b?"

    async def test_tenants_are_kept_apart(self, make_engine, llm):
        pilot = ContextPilot()
        make_engine(pilot=pilot, tenant="acme").chat("124: a?")
        make_engine(pilot=pilot, tenant="other").chat("421: b?")
        assert contents(llm.prompts[1])[1] == "\n\n".join([whole(4), whole(2), whole(1), "421: b?"])

    async def test_equal_passages_of_a_turn_are_sent_once(self, make_engine, llm):
        class Twice(BaseNodePostprocessor):
            def _postprocess_nodes(self, nodes, query_bundle=None):
                return [*nodes, *nodes]

        response = make_engine(node_postprocessors=[Twice()]).chat("12: a?")
        assert contents(llm.prompts[0])[1] == "\n\n".join([whole(1), whole(2), "12: a?"])
        assert len(response.source_nodes) == 4

    async def test_metadata_as_the_node_shows_it(self, make_engine, make_page, retriever, llm):
        class Titled(type(retriever)):
            def _retrieve(self, query_bundle):
                return [make_page(1, metadata={"title": "Bikes", "score": len(query_bundle.query_str)})]

        engine = make_engine(retriever=Titled())
        engine.chat("one?")
        engine.chat("another one?")
        assert contents(llm.prompts[0])[1] == f"[CB_1] title: Bikes\n\n{text(1)}\n\none?"
        assert contents(llm.prompts[1])[3] == f"{named(1)}\n\nanother one?"

    async def test_without_a_system_prompt_and_with_other_prefix_messages(self, make_engine, llm):
        prefix = [ChatMessage("Be brief.", role="user"), ChatMessage("Yes.", role="assistant")]
        make_engine(system_prompt=None).chat("1: a?")
        make_engine(system_prompt=None, prefix_messages=prefix).chat("1: a?")
        assert [len(prompt) for prompt in llm.prompts] == [1, 3]
        with pytest.raises(ValueError, match="either system_prompt or prefix_messages"):
            make_engine(prefix_messages=prefix)


class TestMemory:
    @pytest.mark.parametrize("how", HOW)
    async def test_holds_each_turn_in_full(self, make_engine, how):
        engine = make_engine()
        await say(engine, "12: a?", how)
        await say(engine, "21: b?", how)
        assert contents(engine.chat_history) == [
            "\n\n".join([whole(1), whole(2), "12: a?"]),
            "an answer",
            "\n\n".join([whole(2), whole(1), "21: b?"]),
            "an answer",
        ]
        assert engine.chat_history[1].role is MessageRole.ASSISTANT
        engine.reset()
        assert engine.chat_history == []

    @pytest.mark.parametrize("how", HOW)
    async def test_what_it_dropped_is_sent_again(self, make_engine, llm, how):
        """Room for two turns: what a later turn names must stand in the messages that go out with it."""
        memory = ChatMemoryBuffer.from_defaults(token_limit=160)
        engine = make_engine(memory=memory)
        for question in ("12: a?", "13: b?", "14: c?", "15: d?", "16: e?", "12: f?"):
            await say(engine, question, how)
        assert len(llm.prompts[-1]) < 12
        for prompt in llm.prompts:
            sent = "\n".join(contents(prompt))
            names = re.findall(r"refer to \[CB_(\d)\]", sent)
            assert all(whole(number) in sent for number in names)
            asked = prompt[-1].content.rpartition("\n\n")[2]
            assert all(whole(number) in sent for number in asked[:2])
        assert any("refer to" in contents(prompt)[-1] for prompt in llm.prompts)

    @pytest.mark.parametrize("how", ["achat", "astream_chat"])
    async def test_llama_indexs_own_memory(self, make_engine, llm, how):
        memory = Memory.from_defaults(token_limit=100_000)
        engine = make_engine(memory=memory)
        await say(engine, "12: a?", how)
        await say(engine, "23: b?", how)
        assert contents(llm.prompts[1])[3] == "\n\n".join([named(2), whole(3), "23: b?"])
        assert len(await memory.aget_all()) == 4

    @pytest.mark.parametrize("how", ["chat", "stream_chat"])
    def test_llama_indexs_own_memory_without_a_loop(self, make_engine, llm, how):
        engine = make_engine(memory=None)
        for question in ("12: a?", "23: b?"):
            response = getattr(engine, how)(question)
            if how == "stream_chat":
                assert "".join(response.response_gen) == "an answer"
        assert contents(llm.prompts[1])[3] == "\n\n".join([named(2), whole(3), "23: b?"])
        assert len(engine.chat_history) == 4

    async def test_a_process_that_knows_nothing_goes_on_with_a_history(self, make_engine, llm):
        engine = make_engine()
        engine.chat("12: a?")
        engine.chat("21: b?")
        other = make_engine()
        other.chat("13: c?", chat_history=engine.chat_history)
        assert contents(llm.prompts[2])[:2] == contents(llm.prompts[1])[:2]
        assert all(whole(number) in "\n".join(contents(llm.prompts[2])) for number in (1, 2, 3))
        other.chat("31: d?")
        assert contents(llm.prompts[3])[:6] == contents(llm.prompts[2])
        assert len(engine.chat_history) == 4

    async def test_a_history_to_begin_with(self, make_engine, llm):
        history = [ChatMessage("Hello.", role="user"), ChatMessage("Hello!", role="assistant")]
        engine = make_engine(memory=None, chat_history=history)
        await engine.achat("1: a?")
        assert contents(llm.prompts[0]) == [SYSTEM, "Hello.", "Hello!", f"{whole(1)}\n\n1: a?"]
        with pytest.raises(ValueError, match="either memory or chat_history"):
            make_engine(chat_history=history)

    # LlamaIndex's thread raises where the caller hears of it anyway.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    @pytest.mark.parametrize("how", HOW)
    async def test_a_turn_without_an_answer_leaves_nothing(self, make_engine, make_llm, how):
        engine = make_engine(llm=make_llm(fails=True))
        with pytest.raises(ConnectionError):
            await say(engine, "12: a?", how)
        assert engine.chat_history == []


class TestWindow:
    @pytest.mark.parametrize("how", ["achat", "astream_chat"])
    async def test_all_of_a_conversation_is_sent_while_that_fits(self, make_engine, make_llm, how):
        """Turns in full would be too large for the window; what is sent is not."""
        llm = make_llm(window=2500)
        engine = make_engine(llm=llm, memory=None)
        for n in range(12):
            await say(engine, f"0123456789: question {n}?", how)
        history = contents(await engine._memory.aget_all())
        assert sum(map(tokens, history)) > 2500 + 900
        assert len(llm.prompts[-1]) == 24
        assert size(llm.prompts[-1]) < 2500 - 64
        for before, after in pairwise(llm.prompts):
            assert contents(after)[: len(before)] == contents(before)

    @pytest.mark.parametrize("how", HOW)
    async def test_the_oldest_turns_are_left_out_before_a_prompt_is_too_large(self, make_engine, llm, how):
        engine = make_engine(max_prompt_tokens=700)
        for question in QUESTIONS:
            await say(engine, question, how)
        same = 0
        for before, after in pairwise(llm.prompts):
            assert [message.role.value for message in after[:2]] == ["system", "user"]
            assert size(after) <= 700
            same += contents(after)[: len(before)] == contents(before)
        assert len(QUESTIONS) - 8 <= same < len(QUESTIONS) - 1
        assert len(engine.chat_history) == 2 * len(QUESTIONS)

    async def test_a_default_memory_goes_with_the_models_window(self, make_engine, make_llm):
        llm = make_llm(window=800)
        engine = make_engine(llm=llm, memory=None)
        for question in QUESTIONS:
            await engine.achat(question)
        sizes = [size(prompt) for prompt in llm.prompts]
        assert 500 < max(sizes) <= 800 - 64
        assert len(await engine._memory.aget_all()) == 2 * len(QUESTIONS)

    @pytest.mark.parametrize("how", HOW)
    async def test_what_went_with_them_is_sent_again(self, make_engine, llm, how):
        engine = make_engine(max_prompt_tokens=400)
        for question in QUESTIONS:
            await say(engine, question, how)
        assert any("refer to" in contents(prompt)[-1] for prompt in llm.prompts)
        for question, prompt in zip(QUESTIONS, llm.prompts, strict=True):
            sent = "\n".join(contents(prompt))
            assert all(whole(number) in sent for number in question[:3])
            assert all(whole(number) in sent for number in re.findall(r"refer to \[CB_(\d)\]", sent))

    def test_who_knows_only_the_history_leaves_out_the_same(self, make_engine, llm):
        engine = make_engine(max_prompt_tokens=400)
        for question in QUESTIONS:
            engine.chat(question)
        other = make_engine(max_prompt_tokens=400)
        other.chat(QUESTIONS[-1], chat_history=engine.chat_history[:-2])
        assert len(llm.prompts[-1]) == len(llm.prompts[-2]) < 10
        engine.reset()
        engine.chat("12: a?")
        assert contents(llm.prompts[-1]) == [SYSTEM, "\n\n".join([whole(1), whole(2), "12: a?"])]

    def test_a_memory_of_ones_own_decides(self, make_engine, make_llm):
        llm = make_llm(window=300)
        engine = make_engine(llm=llm)
        for question in QUESTIONS[:5]:
            engine.chat(question)
        assert len(llm.prompts[-1]) == 10
        assert size(llm.prompts[-1]) > 300

    def test_what_a_memory_tells_as_the_system_stays(self, make_engine, llm):
        engine = make_engine(max_prompt_tokens=400)
        summary = ChatMessage("They spoke of trains.", role="system")
        engine.chat(QUESTIONS[0], chat_history=[summary])
        for question in QUESTIONS[1:12]:
            engine.chat(question)
        assert len(llm.prompts[-1]) < 12
        assert all(contents(prompt)[:2] == [SYSTEM, summary.content] for prompt in llm.prompts)

    def test_a_turn_that_does_not_fit_by_itself(self, make_engine, llm, caplog):
        engine = make_engine(max_prompt_tokens=120)
        engine.chat("1: a?")
        engine.chat("0123456789: b?")
        engine.chat("2: c?")
        assert "let the retriever find less" in caplog.text
        assert "bicycles" not in caplog.text
        assert [len(prompt) for prompt in llm.prompts] == [2, 2, 2]
        assert all(whole(number) in llm.prompts[1][1].content for number in range(10))

    def test_the_pilots_token_counter_counts(self, make_engine, llm):
        engine = make_engine(max_prompt_tokens=1000, pilot=ContextPilot(token_counter=len))
        for question in QUESTIONS:
            engine.chat(question)
        sizes = [len("".join(contents(prompt))) for prompt in llm.prompts]
        assert 700 < max(sizes) <= 1000

    @pytest.mark.parametrize("how", HOW)
    async def test_a_model_that_counts_more_than_the_estimate(self, make_engine, make_llm, how):
        """As a model of English does with German."""

        def reported(messages):
            return size(messages) * 3 // 2

        llm = make_llm(window=1200, reported=reported)
        engine = make_engine(llm=llm, memory=None)
        for question in QUESTIONS:
            await say(engine, question, how)
        sizes = [reported(prompt) for prompt in llm.prompts]
        assert 800 < max(sizes) <= 1200 - 64
        silent = make_llm(window=1200)
        engine = make_engine(llm=silent, memory=None)
        for question in QUESTIONS:
            await say(engine, question, how)
        assert max(map(reported, silent.prompts)) > 1200

    @pytest.mark.parametrize(
        "reported",
        [
            lambda messages: size(messages) // 2,
            lambda messages: 0,
            # Where a chat template tells the date and much else, a first question is counted far too low.
            lambda messages: 150 if len(messages) == 2 else size(messages),
        ],
    )
    def test_reports_that_tell_nothing_change_nothing(self, make_engine, make_llm, llm, reported):
        telling = make_llm(reported=reported)
        engines = [make_engine(llm=model, max_prompt_tokens=700) for model in (llm, telling)]
        for question in (": Hello.", *QUESTIONS):
            for engine in engines:
                engine.chat(question)
        assert [contents(prompt) for prompt in telling.prompts] == [
            contents(prompt) for prompt in llm.prompts
        ]

    def test_pictures_are_not_counted(self, make_engine, make_llm, llm):
        history = [
            ChatMessage(blocks=[ImageBlock(url="http://localhost/bike.png")], role="user"),
            ChatMessage("A bike.", role="assistant"),
        ]
        telling = make_llm(reported=lambda messages: 10_000)
        engine = make_engine(llm=telling, max_prompt_tokens=700)
        engine.chat("12: a?", chat_history=history)
        engine.chat("34: b?")
        assert len(telling.prompts[1]) == 6

    def test_tokens_that_cannot_be_counted(self, make_engine, llm, caplog):
        def fails(text):
            raise RuntimeError("secret text")

        engine = make_engine(max_prompt_tokens=10, pilot=ContextPilot(token_counter=fails))
        engine.chat(": a?")
        engine.chat(": b?")
        assert contents(llm.prompts[1]) == [SYSTEM, ": a?", "an answer", ": b?"]
        assert "RuntimeError" in caplog.text
        assert "secret" not in caplog.text

    def test_no_room(self, make_engine):
        with pytest.raises(ValueError, match="max_prompt_tokens must be at least 1, got 0"):
            make_engine(max_prompt_tokens=0)


class TestWhatComesBack:
    @pytest.mark.parametrize("how", HOW)
    async def test_an_answer_and_its_nodes(self, make_engine, how):
        response = await say(make_engine(), "21: a?", how)
        assert str(response) == "an answer"
        assert [(item.node_id, item.score, item.text) for item in response.source_nodes] == [
            ("2", 0.5, text(2)),
            ("1", 0.5, text(1)),
        ]
        (source,) = response.sources
        assert source.raw_output == response.source_nodes
        assert source.content == f"{whole(2)}\n\n{whole(1)}"

    @pytest.mark.parametrize("how", HOW)
    async def test_postprocessors_have_their_say(self, make_engine, make_page, retriever, llm, how):
        class Scored(type(retriever)):
            def _retrieve(self, query_bundle):
                return [make_page(1, 0.9), make_page(2, 0.1)]

        cutoff = SimilarityPostprocessor(similarity_cutoff=0.5)
        engine = make_engine(retriever=Scored(), node_postprocessors=[cutoff])
        response = await say(engine, "a?", how)
        assert [item.node_id for item in response.source_nodes] == ["1"]
        assert text(2) not in contents(llm.prompts[0])[1]

    async def test_nodes_that_were_planned_go_back_to_their_order_of_relevance(self, make_engine, llm):
        planned = ContextPilotPostprocessor()
        make_engine(node_postprocessors=[planned]).chat("12: a?")
        make_engine(node_postprocessors=[planned]).chat("21: b?")
        assert contents(llm.prompts[1])[1] == "\n\n".join([whole(2), whole(1), "21: b?"])


async def test_a_failure_inside_sends_the_turn_as_it_is(make_engine, llm, monkeypatch, caplog):
    engine = make_engine()
    engine.chat("12: a?")

    def fails(*args):
        raise RuntimeError("secret text")

    monkeypatch.setattr(engine.pilot.conversations, "take", fails)
    response = engine.chat("21: b?")
    assert contents(llm.prompts[1])[3] == "\n\n".join([whole(2), whole(1), "21: b?"])
    assert len(response.source_nodes) == 2
    assert engine.pilot.outcomes[Outcome.FAILED] == 1
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text


async def test_nodes_that_cannot_be_read_are_as_bad_as_ever(make_engine, retriever):
    class Broken(TextNode):
        def get_content(self, metadata_mode="none"):
            raise RuntimeError("unreadable")

    class Finds(type(retriever)):
        def _retrieve(self, query_bundle):
            from llama_index.core.schema import NodeWithScore

            return [NodeWithScore(node=Broken(text="text"))]

    with pytest.raises(RuntimeError, match="unreadable"):
        make_engine(retriever=Finds()).chat("a?")


@pytest.mark.parametrize("how", HOW)
async def test_earlier_chunks_where_nothing_is_found(make_engine, make_page, llm, how):
    engine = make_engine()
    response = await say(engine, ": a?", how, prev_chunks=[make_page(3)])
    assert [item.node_id for item in response.source_nodes] == ["3"]
    await say(engine, "1: b?", how, prev_chunks=[make_page(4)])
    assert contents(llm.prompts[0])[1] == f"{whole(3)}\n\n: a?"
    assert contents(llm.prompts[1])[3] == f"{whole(1)}\n\n1: b?"


def test_one_name_is_no_list_of_names(make_engine):
    with pytest.raises(TypeError, match=r"metadata_keys .* pass \['title'\]"):
        make_engine(metadata_keys="title")


def test_arguments_that_llama_indexs_own_engine_takes_as_none(make_engine, llm):
    engine = make_engine(memory=None, chat_history=None, node_postprocessors=None, prefix_messages=None)
    assert str(engine.chat("1: a?")) == "an answer"


def test_the_model_of_the_settings(retriever, llm, monkeypatch):
    monkeypatch.setattr(Settings, "_llm", llm)
    assert str(ContextPilotChatEngine.from_defaults(retriever).chat("1: a?")) == "an answer"
