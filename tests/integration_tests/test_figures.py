"""The hit ratios that plans have to reach on real traces, where their folder is named.

"published" is what the published ContextPilot 0.5.0 reaches, "prototype" a plain-Python one of the method.
"""

import pytest

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.evaluation import parse_capacity, read_trace, simulate

# trace: (offline: published, prototype), (online, unlimited: the same), (online, at 10 %: the same)
FIGURES = {
    "2wikimultihopqa_psirag_k5": ((0.144, 0.145), (0.076, 0.089), (0.030, 0.044)),
    "graphragbench_novel_bm25_k15": ((0.398, 0.429), (0.198, 0.300), (0.191, 0.297)),
    "graphragbench_novel_lsa_k15": ((0.632, 0.661), (0.407, 0.554), (0.399, 0.549)),
    "hotpotqa_psirag_k5": ((0.056, 0.056), (0.012, 0.014), (0.002, 0.003)),
    "mtrag_clapnq_elser_questions_k10": ((0.642, 0.641), (0.495, 0.549), (0.492, 0.544)),
    "mtrag_clapnq_elser_rewrite_k10": ((0.205, 0.206), (0.088, 0.104), (0.087, 0.096)),
    "mtrag_cloud_bge_questions_k10": ((0.560, 0.563), (0.422, 0.444), (0.415, 0.438)),
    "mtrag_cloud_bge_rewrite_k10": ((0.149, 0.152), (0.078, 0.088), (0.063, 0.074)),
    "multihoprag_proxy_bm25_k15": ((0.280, 0.290), (0.100, 0.179), (0.042, 0.079)),
    "multihoprag_proxy_lsa_k15": ((0.400, 0.411), (0.171, 0.260), (0.080, 0.135)),
    "multihoprag_psirag_k5": ((0.252, 0.260), (0.156, 0.194), (0.080, 0.113)),
    "qasper_bm25_1024tok_k15": ((0.299, 0.318), (0.085, 0.195), (0.053, 0.121)),
    "qasper_bm25_256tok_k15": ((0.227, 0.244), (0.114, 0.145), (0.079, 0.099)),
    "qasper_lsa_1024tok_k15": ((0.323, 0.338), (0.124, 0.198), (0.083, 0.131)),
    "qasper_lsa_256tok_k15": ((0.338, 0.347), (0.142, 0.203), (0.089, 0.145)),
}


@pytest.fixture(params=FIGURES, scope="module")
def trace(request, data_dir):
    contexts = [line.blocks for line in read_trace(data_dir / "traces" / f"{request.param}.jsonl")]
    return contexts, FIGURES[request.param]


def reached(plans, capacity=None):
    """The hit ratio of plans in execution order; what the pilot expected has to come true."""
    result = simulate([plan.blocks for plan in plans], capacity)
    assert list(result.hits_per_request) == [plan.expected_cached_blocks for plan in plans]
    return result.hit_ratio


def test_offline(trace):
    contexts, ((published, prototype), _, _) = trace
    batch = ContextPilot(capacity=None).prepare_batch(contexts)
    ratio = reached([batch.plans[place] for place in batch.schedule])
    assert ratio >= max(published - 0.002, 0.97 * prototype)


def test_online(trace):
    contexts, (_, (published, prototype), _) = trace
    pilot = ContextPilot(capacity=None)
    assert reached([pilot.prepare(context) for context in contexts]) >= max(published, 0.95 * prototype)


def test_online_with_a_cache_of_a_tenth(trace):
    contexts, (_, _, (published, prototype)) = trace
    capacity = parse_capacity("10%", sum(map(len, contexts)))
    pilot = ContextPilot(capacity=capacity)
    plans = [pilot.prepare(context) for context in contexts]
    assert reached(plans, capacity) >= max(published, 0.95 * prototype)
