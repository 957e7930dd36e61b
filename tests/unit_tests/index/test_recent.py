from contextpilot_integrations.index import recent
from contextpilot_integrations.index.recent import RecentContexts


def test_the_most_similar_context_shares_most_tokens_and_the_latest_of_equals_wins():
    contexts = RecentContexts()
    for context in ([1, 2, 3], [4, 5], [4, 6]):
        contexts.add(context)
    assert contexts.most_similar([1, 2, 4], [1, 1, 1]) == {1, 2, 3}
    assert contexts.most_similar([1, 2, 4], [1, 1, 9]) == {4, 6}
    assert contexts.most_similar([9], [1]) == frozenset()


def test_only_the_last_contexts_are_kept(monkeypatch):
    monkeypatch.setattr(recent, "_CONTEXTS", 3)
    contexts = RecentContexts()
    for number in range(1000):
        contexts.add([number, "always"])
    assert contexts.most_similar([996], [1]) == frozenset()
    assert contexts.most_similar([997], [1]) == {997, "always"}
    assert len(contexts._holders) == 4
    assert len(contexts._holders["always"]) == 3
