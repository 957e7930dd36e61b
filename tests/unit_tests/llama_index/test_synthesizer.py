"""What becomes of the order in LlamaIndex's own response synthesizers."""

import logging
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_index.core import PromptTemplate, Settings
from llama_index.core.chat_engine import CondenseQuestionChatEngine
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import (
    BaseSynthesizer,
    CompactAndRefine,
    ResponseMode,
    SimpleSummarize,
    get_response_synthesizer,
)
from llama_index.core.schema import MediaResource, Node, NodeWithScore, QueryBundle

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.llama_index import ContextPilotPostprocessor, ContextPilotSynthesizer

ORDER = (
    "Please read the context in the following priority order: "
    "[CB_3] > [CB_1] > [CB_2] and answer the question."
)
ONE_PROMPT = ["compact", "tree_summarize", "simple_summarize", "compact_accumulate"]
PER_NODE = ["refine", "accumulate"]


@pytest.fixture
def nodes(make_page):
    """Pages 3, 1, 2 by relevance, planned as 1, 2, 3."""
    postprocessor = ContextPilotPostprocessor(pilot=ContextPilot())
    one, two, three = (make_page(number) for number in (1, 2, 3))
    postprocessor.postprocess_nodes([one, two, three])
    return postprocessor.postprocess_nodes([three, one, two])


def synthesizer(mode, llm, **settings):
    return ContextPilotSynthesizer(
        get_response_synthesizer(llm=llm, response_mode=ResponseMode(mode), **settings)
    )


async def answer(synthesizer, nodes, how, query="How much?"):
    if how == "sync":
        return str(synthesizer.synthesize(query, nodes))
    if how == "async":
        return str(await synthesizer.asynthesize(query, nodes))
    if how == "stream":
        return "".join(synthesizer.synthesize(query, nodes).response_gen)
    response = await synthesizer.asynthesize(query, nodes)
    return "".join([text async for text in response.async_response_gen()])


def markers(prompt):
    return re.findall(r"\[CB_\d\]", prompt)


HOW = ["sync", "async", "stream", "async stream"]


class TestOnePrompt:
    @pytest.mark.parametrize("how", HOW)
    @pytest.mark.parametrize("mode", ["compact", "tree_summarize", "simple_summarize"])
    async def test_the_order_is_sent_and_told_before_the_question(self, llm, nodes, mode, how, caplog):
        synth = synthesizer(mode, llm, streaming="stream" in how)
        assert await answer(synth, nodes, how) == "an answer"
        (prompt,) = llm.prompts
        assert markers(prompt) == ["[CB_1]", "[CB_2]", "[CB_3]", "[CB_3]", "[CB_1]", "[CB_2]"]
        assert f"{ORDER}\n\nHow much?" in prompt
        assert not caplog.records

    @pytest.mark.parametrize("mode", ["compact", "tree_summarize", "compact_accumulate"])
    def test_the_blocks_stand_as_they_are_rendered(self, llm, nodes, mode):
        synthesizer(mode, llm).synthesize("How much?", nodes)
        assert "\n\n".join(item.node.get_content("llm") for item in nodes) in llm.prompts[0]

    def test_simple_summarize_writes_a_list_of_python(self, llm, nodes):
        synthesizer("simple_summarize", llm).synthesize("How much?", nodes)
        assert "\n['[CB_1] The text of page 1." in llm.prompts[0]
        assert "who may hire one.\\n[CB_2] The text of page 2." in llm.prompts[0]

    @pytest.mark.parametrize("mode", ONE_PROMPT)
    def test_what_comes_before_the_order_is_the_same_in_every_prompt(self, llm, make_page, mode):
        pages = [make_page(number) for number in (1, 2, 3)]
        postprocessor = ContextPilotPostprocessor()
        for order in (pages, pages[::-1]):
            synthesizer(mode, llm).synthesize("How much?", postprocessor.postprocess_nodes(order))
        before, after = llm.prompts
        start = after.index("Please read the context")
        assert before[:start] == after[:start]

    def test_it_is_in_neither_nodes_nor_response(self, llm, nodes):
        query = QueryBundle("How much?")
        response = synthesizer("compact", llm).synthesize(query, nodes)
        assert query == QueryBundle("How much?")
        assert response.source_nodes == nodes
        assert "[CB_3] > [CB_1]" not in repr(response)

    def test_nothing_is_added_in_order_of_relevance(self, llm, make_page):
        nodes = ContextPilotPostprocessor().postprocess_nodes([make_page(1), make_page(2)])
        synthesizer("compact", llm).synthesize("How much?", nodes)
        assert "Query: How much?" in llm.prompts[0]

    def test_without_nodes(self, llm):
        assert str(synthesizer("compact", llm).synthesize("How much?", [])) == "Empty Response"

    def test_someones_own(self, llm, nodes, monkeypatch):
        # LlamaIndex 0.14.22 keeps the helper that it makes here, for this window, as everyone's.
        monkeypatch.setattr(Settings, "_prompt_helper", None)

        class Own(BaseSynthesizer):
            def get_response(self, query_str, text_chunks, **kwargs):
                return self._llm.complete(f"{text_chunks} {query_str}").text

            async def aget_response(self, query_str, text_chunks, **kwargs):
                return self.get_response(query_str, text_chunks)

            def _get_prompts(self):
                return {}

            def _update_prompts(self, prompts):
                pass

        ContextPilotSynthesizer(Own(llm=llm)).synthesize("How much?", nodes)
        assert ORDER in llm.prompts[0]


class TestSeveralPrompts:
    @pytest.mark.parametrize("how", HOW)
    async def test_refine_destroys_the_order(self, llm, nodes, how, caplog):
        synth = synthesizer("refine", llm, streaming="stream" in how)
        await answer(synth, nodes, how)
        assert [markers(prompt) for prompt in llm.prompts] == [["[CB_1]"], ["[CB_2]"], ["[CB_3]"]]
        assert not any("priority order" in prompt for prompt in llm.prompts)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert "Refine does not show the model all passages in one prompt (3 of them take 3)" in caplog.text

    @pytest.mark.parametrize("mode", PER_NODE)
    def test_the_warning_comes_once(self, llm, nodes, mode, caplog):
        synth = synthesizer(mode, llm)
        for _ in range(3):
            synth.synthesize("How much?", nodes)
        assert len(caplog.records) == 1

    @pytest.mark.parametrize("mode", ["compact", "tree_summarize", "compact_accumulate", "simple_summarize"])
    def test_so_does_a_window_that_is_too_small(self, make_llm, make_page, mode, caplog):
        pages = [make_page(number) for number in range(1, 10)]
        postprocessor = ContextPilotPostprocessor()
        postprocessor.postprocess_nodes(pages)
        nodes = postprocessor.postprocess_nodes(pages[::-1])
        # Compact sets 500 tokens aside for an answer to refine.
        llm = make_llm(window=740 if mode == "compact" else 240)
        synthesizer(mode, llm).synthesize("How much?", nodes)
        assert not any("priority order" in prompt for prompt in llm.prompts)
        assert all(markers(prompt).count("[CB_1]") < 2 for prompt in llm.prompts)
        assert len(caplog.records) == 1
        assert "(9 of them take" in caplog.text

    @pytest.mark.parametrize("mode", ["generation", "no_text", "context_only"])
    def test_where_nothing_reaches_a_model_there_is_nothing_to_tell(
        self, llm, nodes, mode, caplog, monkeypatch
    ):
        monkeypatch.setattr(Settings, "_llm", llm)
        synthesizer(mode, llm).synthesize("How much?", nodes)
        assert not any("priority order" in prompt for prompt in llm.prompts)
        assert not caplog.records


class TestMultimodal:
    @pytest.mark.parametrize("how", HOW)
    @pytest.mark.parametrize("kind", [CompactAndRefine, SimpleSummarize])
    async def test_the_model_sees_each_marker_and_its_text(
        self, make_llm, nodes, text, kind, how, caplog, monkeypatch
    ):
        monkeypatch.setattr(Settings, "_chat_prompt_helper", None)
        llm = make_llm(chats=True)
        synth = ContextPilotSynthesizer(kind(llm=llm, streaming="stream" in how, multimodal=True))
        for _ in range(2):
            assert await answer(synth, nodes, how) == "an answer"
        blocks = [block.text for message in llm.prompts[0] for block in message.blocks]
        shown = " ".join("\n".join(blocks).split())
        assert " ".join(f"[CB_{n}] {text(n)}" for n in (1, 2, 3)) in shown
        assert "contextpilot" not in shown
        assert "priority order" not in shown
        (record,) = caplog.records
        assert "is not told by a multimodal" in record.getMessage()

    def test_so_is_the_order_of_pictures(self, make_llm, caplog):
        data = [MediaResource(data=b"abc", mimetype="image/png") for _ in range(3)]
        pictures = [
            NodeWithScore(node=Node(id_=str(number), image_resource=resource), score=0.5)
            for number, resource in enumerate(data)
        ]
        postprocessor = ContextPilotPostprocessor()
        postprocessor.postprocess_nodes(pictures)
        nodes = postprocessor.postprocess_nodes(pictures[::-1])
        (marker, picture) = nodes[0].node.get_content_blocks("llm")
        assert (marker.text, picture.block_type) == ("[CB_0]", "image")
        synth = ContextPilotSynthesizer(CompactAndRefine(llm=make_llm(chats=True), multimodal=True))
        synth.synthesize("How much?", nodes)
        assert len(caplog.records) == 1

    def test_nothing_is_logged_in_order_of_relevance(self, make_llm, make_page, caplog):
        nodes = ContextPilotPostprocessor().postprocess_nodes([make_page(1), make_page(2)])
        synth = ContextPilotSynthesizer(CompactAndRefine(llm=make_llm(chats=True), multimodal=True))
        synth.synthesize("How much?", nodes)
        assert not caplog.records


class TestAsAnySynthesizer:
    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("how", ["chat", "achat", "stream_chat", "astream_chat"])
    async def test_behind_a_chat_engine_that_condenses_questions(self, llm, retriever, how, streaming):
        synth = synthesizer("compact", llm, streaming=streaming)
        engine = RetrieverQueryEngine(retriever, synth)
        chat = CondenseQuestionChatEngine.from_defaults(engine, llm=llm)
        response = getattr(chat, how)("12: How much?")
        response = response if how in ("chat", "stream_chat") else await response
        if how == "stream_chat":
            assert "".join(response.response_gen) == "an answer"
        elif how == "astream_chat":
            assert "".join([text async for text in response.async_response_gen()]) == "an answer"
        else:
            assert response.response == "an answer"
        assert synth.synthesizer._streaming is streaming

    def test_in_a_query_engine(self, llm, retriever):
        engine = RetrieverQueryEngine.from_args(
            retriever,
            llm=llm,
            node_postprocessors=[ContextPilotPostprocessor()],
            response_synthesizer=synthesizer("compact", llm),
        )
        for query in ("123: How much?", "312: How much?"):
            response = engine.query(query)
        assert f"{ORDER}\n\n312: How much?" in llm.prompts[1]
        assert [item.node_id for item in response.source_nodes] == ["1", "2", "3"]

    def test_prompts_are_those_of_the_wrapped_one(self, llm, nodes):
        synth = synthesizer("compact", llm)
        assert set(synth.get_prompts()) == set(synth.synthesizer.get_prompts())
        synth.update_prompts({"text_qa_template": PromptTemplate("{context_str}|{query_str}")})
        synth.synthesize("How much?", nodes)
        assert llm.prompts[0].endswith(f"hire one.|{ORDER}\n\nHow much?")

    def test_threads_do_not_mix_orders(self, llm, make_page):
        postprocessor, synth = ContextPilotPostprocessor(), synthesizer("compact", llm)
        pages = [make_page(number) for number in range(1, 7)]
        postprocessor.postprocess_nodes(pages)

        def ask(turn):
            relevance = pages[turn % 6 :] + pages[: turn % 6]
            synth.synthesize(f"question {turn}.", postprocessor.postprocess_nodes(relevance))
            return [f"[CB_{item.node_id}]" for item in relevance]

        with ThreadPoolExecutor(8) as pool:
            orders = list(pool.map(ask, range(48)))
        for turn, order in enumerate(orders):
            (prompt,) = (prompt for prompt in llm.prompts if f"question {turn}." in prompt)
            told = markers(prompt)[6:]
            assert told == ([] if turn % 6 == 0 else order)
