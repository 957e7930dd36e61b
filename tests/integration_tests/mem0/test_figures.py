"""The hit ratio that searches for memories have to reach on LoCoMo's, where their folder is named.

Each question is a request of its own, and each conversation's memories are a user's. Published is what the
published ContextPilot 0.5.0 reaches.
"""

import json

import pytest

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.evaluation import read_blocks, read_trace, simulate
from contextpilot_integrations.mem0 import ContextPilotMemory

PUBLISHED = 0.151
TRACE = "locomo_observations_bm25_k20"


class Replay:
    """Finds what was found when the trace was recorded, in the shape of Mem0's search."""

    def __init__(self, texts):
        self.texts, self.ids = texts, []

    def search(self, query, **kwargs):
        return {"results": [{"id": id, "memory": self.texts[id].text, "score": None} for id in self.ids]}


@pytest.fixture(scope="module")
def locomo(data_dir):
    folder = data_dir / "nc"
    if not (folder / "traces" / f"{TRACE}.jsonl").exists():
        pytest.skip("there are no LoCoMo memories in the folder of real traces")
    texts = read_blocks(folder / "blocks" / "locomo_observations.jsonl")
    return texts, read_trace(folder / "traces" / f"{TRACE}.jsonl")


def test_online_with_an_index_per_conversation(locomo):
    texts, requests = locomo
    replay = Replay(texts)
    memory = ContextPilotMemory(replay, pilot=ContextPilot(capacity=None, on_error="raise"))
    sent, expected, tenants = [], [], set()
    for request in requests:
        replay.ids = [block.id for block in request.blocks]
        found = memory.search(request.query, filters={"user_id": request.session_id})
        ids = [found["results"][rank]["id"] for rank in found["contextpilot"]["order"]]
        assert sorted(ids) == sorted(replay.ids)
        sent.append([(request.session_id, id) for id in ids])
        expected.append(found["contextpilot"]["expected_cached_blocks"])
        tenants.add(json.loads(found["contextpilot"]["tenant"])["user_id"])
    result = simulate(sent)
    assert list(result.hits_per_request) == expected
    assert tenants == {request.session_id for request in requests}
    assert result.hit_ratio >= 1.8 * PUBLISHED, result.hit_ratio
