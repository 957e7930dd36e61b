import pickle
import threading

import pytest
from langchain_core.documents import Document
from langchain_core.load import dumps, loads

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.langchain import ContextPilotAligner, format_documents, plan_metadata
from contextpilot_integrations.langchain.documents import to_block


class TestIdentity:
    def test_the_documents_id_comes_first(self):
        assert to_block(Document("text", id="a", metadata={"id": "b"})).id == "a"

    def test_an_id_in_the_metadata_is_not_taken_since_it_may_be_a_parents(self):
        chunks = [Document(text, metadata={"id": "doc7"}) for text in ("one", "two")]
        assert len({to_block(chunk).label for chunk in chunks}) == 2

    def test_else_the_text_tells_documents_apart(self):
        assert to_block(Document("text", metadata={"score": 1})) == to_block(Document("text"))
        assert to_block(Document("text")).id != to_block(Document("other")).id

    def test_a_lone_surrogate(self):
        assert to_block(Document.model_construct(page_content="\ud800", metadata={})).text == "\ud800"


class Scored(Document):
    score: float = 0.0
    spans: list[int]


class TestCopies:
    @pytest.fixture
    def aligner(self):
        return ContextPilotAligner()

    def test_metadata_is_copied_all_the_way_down(self, aligner):
        document = Document("text", metadata={"spans": [{"start": 1}]})
        (out,) = aligner.invoke([document])
        out.metadata["spans"][0]["start"] = 2
        assert document.metadata == {"spans": [{"start": 1}]}

    def test_what_cannot_be_copied_is_shared_and_the_rest_is_not(self, aligner):
        lock = threading.Lock()
        document = Document("text", metadata={"lock": lock, "tags": ["a"]})
        (out,) = aligner.invoke([document])
        assert out.metadata["lock"] is lock
        out.metadata["tags"].append("b")
        assert document.metadata == {"lock": lock, "tags": ["a"]}

    def test_subclasses_stay_what_they_are(self, aligner):
        document = Scored("text", id="a", score=0.5, spans=[1])
        (out,) = aligner.invoke([document])
        assert isinstance(out, Scored)
        assert (out.id, out.score, out.spans) == ("a", 0.5, [1])
        out.spans.append(2)
        assert document.spans == [1]

    def test_an_entry_of_the_same_name_is_replaced(self, aligner):
        document = Document("text", metadata={"contextpilot": "mine"})
        assert plan_metadata(document) is None
        (out,) = aligner.invoke([document])
        assert plan_metadata(out)["rank"] == 0
        assert document.metadata == {"contextpilot": "mine"}


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
class TestThePlanTravels:
    @pytest.fixture
    def documents(self):
        aligner = ContextPilotAligner(pilot=ContextPilot(order_template="Order: {order}."))
        documents = [Document(f"text {n}", id=f"d{n}") for n in (1, 2, 3)]
        aligner.invoke(documents)
        return aligner.invoke(documents[::-1])

    def test_what_it_says(self, documents):
        assert plan_metadata(documents[0]) == {
            "rank": 2,
            "position": 0,
            "label": "d1",
            "digest": to_block(documents[0]).digest.hex(),
            "shown_as": None,
            "request": plan_metadata(documents[1])["request"],
            "outcome": "aligned",
            "search_path": [0],
            "expected_cached_blocks": 3,
            "expected_cached_tokens": 6,
            "order_template": "Order: {order}.",
            "schedule_position": None,
        }

    @pytest.mark.parametrize(
        "travel",
        [
            lambda documents: pickle.loads(pickle.dumps(documents)),
            lambda documents: loads(dumps(documents), allowed_objects=[Document]),
            lambda documents: [Document.model_validate_json(d.model_dump_json()) for d in documents],
        ],
        ids=["pickle", "langchain", "json"],
    )
    def test_it_survives(self, documents, travel):
        prompt = format_documents.invoke(documents)
        assert prompt.endswith("\n\nOrder: [CB_d3] > [CB_d2] > [CB_d1].")
        assert format_documents.invoke(travel(documents)) == prompt
