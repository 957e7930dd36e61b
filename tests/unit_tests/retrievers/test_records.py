import datetime

import pytest

pytest.importorskip("langchain_core")

from langchain_core.documents import Document

from contextpilot_integrations.langchain import ContextPilotAligner
from contextpilot_integrations.retrievers.records import to_records


def test_an_id_is_kept_and_a_missing_one_stands_for_text_and_metadata():
    given = [Document("text", id="a"), Document("text"), Document("text", metadata={"x": 1, "y": 2})]
    ids = [record.id for record in to_records(given)]
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    again = [Document("text", metadata={"y": 2, "x": 1})]
    assert to_records(again)[0].id == ids[2]


def test_it_never_changes():
    assert to_records([Document("text")])[0].id == "6cdf8f9ead534d20416336002fe6f916"


def test_equal_documents_count_once_and_different_ones_of_one_id_are_refused():
    assert [record.id for record in to_records([Document("b", id="1"), Document("b", id="1")])] == ["1"]
    for other in (Document("c", id="1"), Document("b", id="1", metadata={"n": 1})):
        with pytest.raises(ValueError, match="two different documents have the id '1'"):
            to_records([Document("b", id="1"), other])
    with pytest.raises(ValueError, match=r"documents\[1\] has an empty id"):
        to_records([Document("b"), Document("c", id="")])


@pytest.mark.parametrize("value", [datetime.date(2026, 1, 1), {1, 2}, float("nan"), b"x", object()])
def test_metadata_that_json_cannot_hold(value):
    with pytest.raises(TypeError, match=r"metadata of documents\[1\] cannot be JSON"):
        to_records([Document("a"), Document("b", metadata={"key": value})])


def test_what_is_no_document():
    with pytest.raises(TypeError, match="Document objects, not str"):
        to_records(["text"])


def test_nothing_is_shared_with_the_documents_given_or_found():
    document = Document("text", metadata={"tags": ["a"]})
    (record,) = to_records([document])
    document.metadata["tags"].append("b")
    record.found(0.5).metadata["tags"].append("c")
    assert record.found(0.5).metadata == {"tags": ["a"], "_score": 0.5}


def test_keys_that_become_one_string():
    for metadata in ({1: "a", "1": "b"}, {"nested": [{True: 1, "true": 2}]}):
        with pytest.raises(TypeError, match=r"documents\[0\] cannot be JSON: .* two are '(1|true)'"):
            to_records([Document("text", metadata=metadata)])
    assert to_records([Document("text", metadata={1: "a"})])[0].metadata == {"1": "a"}


@pytest.mark.parametrize("identity", ["a", None])
def test_what_was_found_and_planned_is_the_same_document_when_it_is_added_again(identity):
    given = Document("text", id=identity, metadata={"score": 97, "tags": ["a"]})
    (record,) = to_records([given])
    found = record.found(0.5)
    assert found.metadata == {"score": 97, "tags": ["a"], "_score": 0.5}
    planned, _ = ContextPilotAligner().invoke([found, Document("other")])
    assert planned.metadata.keys() == {*found.metadata, "contextpilot"}
    for again in (found, planned):
        assert to_records([again.model_copy(update={"id": identity})]) == [record]
        assert to_records([again]) == [record]
