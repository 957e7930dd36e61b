"""The README's code for LlamaIndex, as it stands."""

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.llms import MockLLM
from llama_index.core.schema import NodeWithScore, TextNode
from readme_code import code_under

from contextpilot_integrations import Outcome


class Retriever(BaseRetriever):
    def _retrieve(self, query_bundle):
        order = "321" if "carry" in query_bundle.query_str else "123"
        return [NodeWithScore(node=TextNode(id_=n, text=f"The text of page {n}."), score=0.5) for n in order]


def test_the_code_runs():
    (code,) = code_under("LlamaIndex")
    names = {"your_llm": MockLLM(), "your_retriever": Retriever()}
    exec(code, names)
    assert names["planned"].pilot.outcomes[Outcome.UNCHANGED] == 2
    assert "[CB_1] The text of page 1." in names["chat"].chat_history[0].content
    again = names["engine"].query("How much can it carry?")
    assert [node.node_id for node in again.source_nodes] == ["1", "2", "3"]
    assert "priority order: [CB_3] > [CB_2] > [CB_1]" in str(again)  # The mock model repeats its prompt.
