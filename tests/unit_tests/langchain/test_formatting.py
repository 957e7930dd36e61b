import pytest
from langchain_core.documents import Document
from langchain_core.runnables import RunnableLambda

from contextpilot_integrations.langchain import (
    ContextPilotAligner,
    format_context,
    format_documents,
    order_annotation,
)


@pytest.fixture
def aligned():
    """Four documents sent as 1 2 3 4, retrieved as 4 2 3 1."""
    aligner = ContextPilotAligner()
    documents = [Document(f"text {n}", id=str(n)) for n in (1, 2, 3, 4)]
    aligner.invoke(documents)
    aligned = aligner.invoke([documents[n - 1] for n in (4, 2, 3, 1)])
    assert [document.id for document in aligned] == ["1", "2", "3", "4"]
    return aligned


def named(documents):
    return [part[4:-1] for part in order_annotation.invoke(documents).split() if part.startswith("[CB_")]


def test_blocks_then_the_annotation(aligned):
    assert format_documents.invoke(aligned[2:]) == (
        "[CB_3] text 3\n\n[CB_4] text 4\n\n"
        "Please read the context in the following priority order: [CB_4] > [CB_3] and answer the question."
    )
    assert (
        format_documents.invoke(aligned)
        == f"{format_context.invoke(aligned)}\n\n{order_annotation.invoke(aligned)}"
    )


def test_documents_that_were_never_planned():
    documents = [Document("two", id="b", metadata={"score": 0.1}), Document("one", id="a")]
    assert format_documents.invoke(documents) == "[CB_b] two\n\n[CB_a] one"


def test_nothing():
    assert format_documents.invoke([]) == format_context.invoke([]) == order_annotation.invoke([]) == ""


class TestLaterSteps:
    def test_dropped_documents_are_not_named(self, aligned):
        assert named(aligned) == ["4", "2", "3", "1"]
        assert named(aligned[:3]) == ["2", "3", "1"]
        assert named([aligned[0], aligned[3]]) == ["4", "1"]

    def test_what_remains_in_order_of_relevance_needs_no_annotation(self, aligned):
        assert named(aligned[1:3]) == named(aligned[:1]) == []

    def test_who_reorders_has_the_last_word(self, aligned):
        assert named(aligned[::-1]) == []
        assert format_context.invoke(aligned[::-1]).startswith("[CB_4]")

    def test_an_added_document_has_no_rank(self, aligned):
        assert named([*aligned, Document("text 5", id="5")]) == []

    def test_documents_of_two_requests_have_no_common_order(self, aligned):
        others = ContextPilotAligner().invoke([Document(f"text {n}", id=str(n)) for n in (6, 7)])
        assert named([*aligned[:2], *others]) == []
        assert named([*aligned, *aligned]) == []

    def test_markers_follow_a_changed_text(self):
        aligner = ContextPilotAligner()
        documents = [Document("one"), Document("two")]
        aligner.invoke(documents)
        aligned = aligner.invoke(documents[::-1])
        for document in aligned:
            document.page_content = document.page_content.upper()
        prompt = format_documents.invoke(aligned)
        for label in named(aligned):
            assert prompt.count(f"[CB_{label}]") == 2

    def test_no_annotation_where_markers_have_become_ambiguous(self, aligned):
        aligned[0].page_content = "see [CB_4]"
        assert named(aligned) == []


async def test_they_are_steps_of_a_chain(aligned):
    retriever = RunnableLambda(lambda question: aligned)
    chain = retriever | format_documents
    assert chain.invoke("q") == await chain.ainvoke("q") == format_documents.invoke(aligned)
    assert chain.batch(["q", "q"]) == await chain.abatch(["q", "q"]) == [format_documents.invoke(aligned)] * 2
    apart = retriever | {"context": format_context, "order": order_annotation}
    assert apart.invoke("q") == {
        "context": format_context.invoke(aligned),
        "order": order_annotation.invoke(aligned),
    }
