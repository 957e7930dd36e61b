import asyncio
import copy
import pickle

import numpy as np
import pytest
from llama_index.core.bridge.pydantic import Field
from llama_index.core.callbacks import CallbackManager, CBEventType, LlamaDebugHandler
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.postprocessor import TimeWeightedPostprocessor
from llama_index.core.schema import (
    Document,
    ImageNode,
    IndexNode,
    MediaResource,
    MetadataMode,
    Node,
    NodeRelationship,
    NodeWithScore,
    QueryBundle,
    RelatedNodeInfo,
    TextNode,
)

from contextpilot_integrations import ContextPilot, Outcome
from contextpilot_integrations.llama_index import (
    ContextPilotPostprocessor,
    format_nodes,
    order_annotation,
    plan_metadata,
    to_block,
)

TEXT = "The text of page 1. It goes on about bicycles, what they cost, and who may hire one."


@pytest.fixture
def postprocessor():
    return ContextPilotPostprocessor()


@pytest.fixture
def reordered(postprocessor, make_page):
    """Pages 3, 2, 1, sent as 1, 2, 3."""
    pages = [make_page(number) for number in (1, 2, 3)]
    postprocessor.postprocess_nodes(pages)
    return postprocessor.postprocess_nodes(pages[::-1])


def shown(item):
    return item.node.get_content(MetadataMode.LLM)


class TestWhatTheModelSees:
    def test_a_marker_and_the_text(self, reordered):
        assert shown(reordered[0]) == f"[CB_1] {TEXT}"

    def test_text_ids_and_scores_stay(self, reordered):
        assert [(item.node_id, item.score) for item in reordered] == [("1", 0.5), ("2", 0.5), ("3", 0.5)]
        assert reordered[0].text == reordered[0].get_content() == TEXT

    def test_metadata_that_the_node_shows_is_part_of_the_block(self, postprocessor, make_page):
        (out,) = postprocessor.postprocess_nodes([make_page(1, metadata={"title": "Bikes"})])
        assert shown(out) == f"[CB_1] title: Bikes\n\n{TEXT}"
        other = make_page(1, metadata={"title": "Cars"})
        assert to_block(out.node) != to_block(other.node)

    def test_a_template_of_the_nodes_own(self, postprocessor, make_page):
        fields = {"text_template": "<{metadata_str}> {content}", "metadata_template": "{value}"}
        (out,) = postprocessor.postprocess_nodes([make_page(1, metadata={"title": "Bikes"}, **fields)])
        assert shown(out) == f"[CB_1] <Bikes> {TEXT}"

    @pytest.mark.parametrize(
        "volatile", ["score", "retrieved_at", "distance", "last_accessed_date", "__last_accessed__"]
    )
    @pytest.mark.parametrize("stable", [{}, {"title": "Bikes"}])
    def test_what_differs_from_query_to_query_is_kept_out(self, make_page, volatile, stable):
        texts = set()
        for value in (0.25, 3, np.float32(0.25), None):
            metadata = {volatile: value, **stable}
            (out,) = ContextPilotPostprocessor().postprocess_nodes(
                [make_page(1, value and 0.1, metadata=metadata)]
            )
            assert out.metadata[volatile] == value
            texts.add(shown(out))
        assert len(texts) == 1

    def test_dates_of_a_retrieval_are_kept_out_as_text_too(self, postprocessor, make_page):
        metadata = {"retrieved_at": "2026-01-01", "last_accessed_date": "2026-01-01"}
        (out,) = postprocessor.postprocess_nodes([make_page(1, metadata=metadata)])
        assert shown(out) == f"[CB_1] {TEXT}"

    def test_what_a_text_calls_its_score_is_shown(self, postprocessor, make_page):
        metadata = {"score": "3-2", "rank": "captain", "similarity": True, "distance": 5}
        (out,) = postprocessor.postprocess_nodes([make_page(1, metadata=metadata)])
        assert shown(out) == f"[CB_1] score: 3-2\nrank: captain\nsimilarity: True\n\n{TEXT}"

    def test_recency_postprocessors_leave_a_block_as_it_is(self, postprocessor, make_page):
        page = make_page(1)
        texts = set()
        for now in (1000.0, 2000.0):
            (out,) = postprocessor.postprocess_nodes(
                TimeWeightedPostprocessor(now=now).postprocess_nodes([page])
            )
            texts.add(shown(out))
        assert texts == {f"[CB_1] {TEXT}"}

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"metadata": {"score": 0.5}},
            {"metadata": {"title": "Bikes"}, "excluded_llm_metadata_keys": ["title"]},
            {"metadata": {"title": "Bikes"}, "text_template": "{content}"},
            {"metadata": {"title": "Bikes"}, "metadata_template": ""},
            {"metadata": {"title": "Bikes"}, "metadata_template": "{value}", "text_template": "{content}"},
        ],
    )
    def test_a_text_by_itself_however_its_metadata_is_left_out(self, postprocessor, make_page, fields):
        given = make_page(1, **fields)
        (out,) = postprocessor.postprocess_nodes([given])
        assert shown(out) == f"[CB_1] {TEXT}"
        assert to_block(out.node) == to_block(given.node)
        (again,) = postprocessor.postprocess_nodes([out])
        assert shown(again) == shown(out)
        assert again.node.excluded_embed_metadata_keys == out.node.excluded_embed_metadata_keys

    @pytest.mark.parametrize("metadata", [{}, {"score": 0.5}])
    def test_content_blocks_are_the_marker_and_the_text(self, postprocessor, make_page, metadata):
        (out,) = postprocessor.postprocess_nodes([make_page(1, metadata=metadata)])
        blocks = out.node.get_content_blocks(MetadataMode.LLM)
        assert [block.text for block in blocks] == ["[CB_1]", TEXT]
        assert out.node.get_metadata_str(MetadataMode.LLM) == "[CB_1]"

    def test_the_setting_says_which_metadata(self, make_page):
        fields = {
            "metadata": {"title": "Bikes", "score": 1, "file": "a.pdf"},
            "excluded_llm_metadata_keys": ["title"],
        }
        for keys, text in ([], ""), (["score"], "score: 1\n\n"), (["title"], "title: Bikes\n\n"):
            postprocessor = ContextPilotPostprocessor(metadata_keys=keys)
            (out,) = postprocessor.postprocess_nodes([make_page(1, **fields)])
            assert shown(out) == f"[CB_1] {text}{TEXT}"

    def test_embeddings_see_neither_plan_nor_label(self, postprocessor, make_page):
        (out,) = postprocessor.postprocess_nodes([make_page(1)])
        assert out.node.get_content(MetadataMode.EMBED) == out.text

    def test_an_entry_of_our_name_is_not_shown(self, postprocessor, make_page):
        (out,) = postprocessor.postprocess_nodes([make_page(1, metadata={"contextpilot": "mine"})])
        assert shown(out) == f"[CB_1] {TEXT}"

    def test_a_later_step_may_change_the_text(self, postprocessor, make_page):
        (out,) = postprocessor.postprocess_nodes([make_page(1)])
        out.node.text = "masked {content}"
        assert shown(out) == "[CB_1] masked {content}"


class TestTheOrder:
    def test_is_told(self, reordered):
        assert [plan_metadata(item)["rank"] for item in reordered] == [2, 1, 0]
        assert order_annotation(reordered) == (
            "Please read the context in the following priority order: [CB_3] > [CB_2] > [CB_1] "
            "and answer the question."
        )

    def test_of_those_left_is_told(self, reordered):
        assert "[CB_3] > [CB_1]" in order_annotation([reordered[0], reordered[2]])

    def test_is_lost_where_a_later_step_sorts(self, reordered):
        assert order_annotation(reordered[::-1]) == ""

    @pytest.mark.parametrize("before", [0.5, None, float("nan")])
    def test_a_reranker_has_the_last_word_even_where_it_agrees_with_the_plan(
        self, postprocessor, make_page, before
    ):
        pages = [make_page(number, before) for number in (1, 2, 3)]
        postprocessor.postprocess_nodes(pages)
        planned = postprocessor.postprocess_nodes(pages[::-1])
        assert order_annotation(planned)
        reranked = [
            NodeWithScore(node=item.node, score=np.float32(1 - place / 10))
            for place, item in enumerate(planned)
        ]
        assert order_annotation(reranked) == ""
        again = postprocessor.postprocess_nodes(reranked)
        assert [plan_metadata(item)["rank"] for item in again] == [0, 1, 2]

    def test_is_told_where_scores_got_lost(self, reordered):
        bare = [NodeWithScore(node=item.node) for item in reordered]
        assert order_annotation(bare) == order_annotation(reordered) != ""

    def test_is_not_told_of_what_does_not_show_its_marker(self, reordered):
        reordered[1].node.text_template = "{content}"
        assert order_annotation(reordered) == ""

    def test_planning_again_changes_nothing(self, postprocessor, reordered):
        again = postprocessor.postprocess_nodes(reordered)
        assert format_nodes(again) == format_nodes(reordered)

    @pytest.mark.parametrize("metadata", [{}, {"title": "Bikes"}])
    def test_a_planned_node_is_the_same_block(self, postprocessor, make_page, metadata):
        given = make_page(1, metadata=metadata)
        (out,) = postprocessor.postprocess_nodes([given])
        assert to_block(out.node) == to_block(given.node)

    def test_planning_again_keeps_the_nodes_template(self, postprocessor, make_page):
        (planned,) = postprocessor.postprocess_nodes(
            [make_page(1, text_template="<{metadata_str}|{content}>")]
        )
        assert shown(planned) == f"[CB_1] {TEXT}"
        planned.node.metadata["title"] = "Bikes"
        (again,) = postprocessor.postprocess_nodes([planned])
        assert shown(again) == f"[CB_1] <title: Bikes|{TEXT}>"


class TestCopies:
    def test_inputs_share_nothing_with_outputs_but_what_tells_of_other_nodes(self, postprocessor, make_page):
        source = RelatedNodeInfo(node_id="book", metadata={"pages": [1]})
        given = make_page(
            1,
            metadata={"spans": [{"start": 1}]},
            embedding=[0.5, 0.25],
            relationships={NodeRelationship.SOURCE: source, NodeRelationship.CHILD: [source]},
        )
        before = given.model_copy(deep=True)
        (out,) = postprocessor.postprocess_nodes([given])
        assert out.node.ref_doc_id == "book"
        assert out.embedding == [0.5, 0.25]
        out.metadata["spans"][0]["start"] = 2
        out.embedding.append(1.0)
        del out.node.relationships[NodeRelationship.CHILD]
        out.node.excluded_llm_metadata_keys.append("spans")
        assert given == before

    def test_types_stay(self, postprocessor):
        picture = MediaResource(data=b"abc", mimetype="image/png")
        engine = {"an": "index"}  # Perhaps of gigabytes, so it is shared.
        nodes = [
            TextNode(id_="t", text="text"),
            ImageNode(id_="i", text="text", image="YWJj"),
            IndexNode(id_="x", text="text", index_id="index", obj=engine),
            Node(id_="n", text_resource=MediaResource(text="text"), image_resource=picture),
            Document(id_="d", text="text"),
        ]
        out = postprocessor.postprocess_nodes([NodeWithScore(node=node) for node in nodes])
        assert [type(item.node) for item in out] == [type(node) for node in nodes]
        assert [shown(item) for item in out] == [f"[CB_{node.node_id}] text" for node in nodes]
        assert [item.score for item in out] == [None] * 5
        assert out[1].node.image == "YWJj"
        assert out[2].node.obj is engine
        assert out[3].node.image_resource == picture

    def test_a_picture_without_text_is_passed_on_and_never_named(self, postprocessor, make_page):
        picture = NodeWithScore(node=Node(id_="n", image_resource=MediaResource(data=b"abc")))
        pages = [make_page(1), picture, make_page(2)]
        postprocessor.postprocess_nodes(pages)
        out = postprocessor.postprocess_nodes(pages[::-1])
        assert {item.node_id for item in out} == {"1", "2", "n"}
        assert order_annotation(out) == ""


class TestSettingsTravel:
    @pytest.fixture
    def configured(self, make_page):
        configured = ContextPilotPostprocessor(
            pilot=ContextPilot(order_template="Order: {order}."),
            endpoint="http://localhost",
            model="m",
            tenant="acme",
            preamble="You help.",
            metadata_keys=["title"],
        )
        configured.postprocess_nodes([make_page(1)])
        return configured

    def test_by_to_dict(self, configured):
        data = configured.to_dict()
        assert data["class_name"] == ContextPilotPostprocessor.class_name() == "ContextPilotPostprocessor"
        loaded = ContextPilotPostprocessor.from_dict(data)
        assert loaded.namespace == configured.namespace
        assert loaded.metadata_keys == ["title"]
        assert loaded.pilot is not configured.pilot
        assert ContextPilotPostprocessor.from_json(configured.to_json()).to_dict() == data

    def test_by_pickle(self, configured):
        loaded = pickle.loads(pickle.dumps(configured))
        assert loaded.to_dict() == configured.to_dict()
        assert loaded.pilot.order_template == "Order: {order}."
        assert loaded.pilot.outcomes[Outcome.UNCHANGED] == 0
        with loaded.pilot.index(loaded.namespace) as index:
            assert len(index) == 0

    @pytest.mark.parametrize("dump", [pickle.dumps, copy.copy, copy.deepcopy])
    def test_what_cannot_be_pickled_is_said_and_stays(self, make_page, dump):
        pilot = ContextPilot(token_counter=lambda text: len(text))
        postprocessor = ContextPilotPostprocessor(pilot=pilot)
        if dump is pickle.dumps:
            with pytest.raises(TypeError, match="token_counter"):
                dump(postprocessor)
        else:
            assert dump(postprocessor).pilot.token_counter is pilot.token_counter
        assert postprocessor.pilot is pilot

    def test_by_pickle_without_callbacks_that_refuse(self, configured, caplog):
        class Refuses(LlamaDebugHandler):
            def __reduce__(self):
                raise TypeError("a lock")

        configured.callback_manager = manager = CallbackManager([Refuses(print_trace_on_end=False)])
        loaded = pickle.loads(pickle.dumps(configured))
        assert loaded.pilot.order_template == "Order: {order}."
        assert loaded.callback_manager.handlers == []
        assert configured.callback_manager is manager

    def test_by_model_dump(self, configured):
        loaded = ContextPilotPostprocessor.model_validate(configured.model_dump())
        assert loaded.namespace == configured.namespace


def test_a_misspelt_setting_is_refused():
    with pytest.raises(ValueError, match="tenent"):
        ContextPilotPostprocessor(tenent="acme")


def test_one_name_is_no_list_of_names(make_page):
    for use in (
        lambda: ContextPilotPostprocessor(metadata_keys="title"),
        lambda: to_block(make_page(1).node, "title"),
    ):
        with pytest.raises(TypeError, match=r"metadata_keys must be a list .* pass \['title'\]"):
            use()
    tuples = ContextPilotPostprocessor(metadata_keys=("title",))
    assert tuples.metadata_keys == ["title"]


class _Events(BaseEventHandler):
    seen: list = Field(default_factory=list)

    def handle(self, event, **kwargs):
        self.seen.append(event)


@pytest.fixture
def events():
    handler, dispatcher = _Events(), get_dispatcher()
    dispatcher.add_event_handler(handler)
    yield handler.seen
    dispatcher.event_handlers.remove(handler)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_events_of_a_reranker_are_emitted(events, make_page, asynchronous):
    debug = LlamaDebugHandler(print_trace_on_end=False)
    postprocessor = ContextPilotPostprocessor(callback_manager=CallbackManager([debug]))
    pages, query = [make_page(1), make_page(2)], QueryBundle("question")
    if asynchronous:
        out = asyncio.run(postprocessor.apostprocess_nodes(pages, query))
    else:
        out = postprocessor.postprocess_nodes(pages, query)
    start, end = [event for event in events if "ReRank" in event.class_name()]
    assert (start.query, start.nodes, start.top_n) == (query, pages, 2)
    assert start.model_name == "ContextPilotPostprocessor"
    assert end.nodes == out
    ((before, after),) = debug.get_event_pairs(CBEventType.RERANKING)
    assert before.payload["nodes"] == pages
    assert after.payload["nodes"] == out


def test_what_cannot_be_read_goes_out_as_it_is(make_page, caplog):
    class Broken(TextNode):
        def get_content(self, metadata_mode=MetadataMode.NONE):
            raise RuntimeError("secret text")

    pages = [make_page(1), NodeWithScore(node=Broken(text="secret text"))]
    postprocessor = ContextPilotPostprocessor()
    assert postprocessor.postprocess_nodes(pages) == pages
    assert postprocessor.pilot.outcomes[Outcome.FAILED] == 1
    assert "RuntimeError" in caplog.text
    assert "secret" not in caplog.text
    with pytest.raises(RuntimeError):
        ContextPilotPostprocessor(pilot=ContextPilot(on_error="raise")).postprocess_nodes(pages)
