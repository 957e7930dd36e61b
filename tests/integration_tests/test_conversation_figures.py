"""What rewriting has to save on recorded conversations, where their folder is named.

That originals come back and that nothing sent changes later is checked by the measurement, for every request.
"""

import pytest

from contextpilot_integrations.evaluation.bench.dedup import bench_dedup, read_all_conversations

pytest.importorskip("bpe_openai")


@pytest.fixture(scope="module")
def conversations(data_dir):
    return read_all_conversations(data_dir)


def measured(conversations, name):
    return bench_dedup(name, conversations[name])


def test_agents_that_read_contracts(conversations):
    result = measured(conversations, "clawtasks S=0 A=300")
    assert result.requests == 337
    assert result.tokens.saving >= 0.45
    assert result.mean_saving >= 0.31
    assert result.p99_tokens.saving >= 0.44
    assert result.uncached_tokens.saving >= 0.54


def test_agents_that_read_contracts_between_long_texts(conversations):
    result = measured(conversations, "clawtasks S=12000 A=600")
    assert result.tokens.saving >= 0.28
    assert result.uncached_tokens.saving >= 0.42


@pytest.mark.parametrize(("queries", "saving"), [("questions", 0.52), ("rewrite", 0.23)])
def test_chats_with_retrieval(conversations, queries, saving):
    names = [name for name in conversations if name.startswith("mtrag") and queries in name]
    results = [measured(conversations, name) for name in names]
    assert len(results) == 3
    sent = sum(result.tokens.after for result in results)
    assert 1 - sent / sum(result.tokens.before for result in results) >= saving


def test_agents_with_tools(conversations):
    result = measured(conversations, "taubench_airline")
    assert (result.requests, result.longer) == (2023, 0)
