from contextpilot_integrations.alignment import align, align_batch
from contextpilot_integrations.index.recent import RecentContexts
from contextpilot_integrations.index.tree import ContextIndex


def aligned(context, cached=(), recent=()):
    index, contexts = ContextIndex(), RecentContexts()
    for sequence in cached:
        index.insert(sequence)
    for seen in recent:
        contexts.add(seen)
    return align(context, [1] * len(context), index.search(context), contexts)


def batch(contexts, cached=(), weights=None, **settings):
    index = ContextIndex()
    for sequence in cached:
        index.insert(sequence)
    weights = weights or {block: 1 for context in contexts for block in context}
    return align_batch(contexts, weights, index.search, **settings)


def test_the_cached_sequence_then_the_rest_in_order_of_relevance():
    assert aligned([9, 2, 8, 1], cached=[[1, 2, 3]]) == [1, 2, 9, 8]


def test_without_a_match_the_order_stays():
    assert aligned([5, 7, 8], cached=[[1, 2]]) == [5, 7, 8]


def test_in_the_rest_what_the_most_similar_context_held_goes_first():
    assert aligned([9, 5, 7, 8], recent=[[8, 5, 1]]) == [5, 8, 9, 7]
    assert aligned([2, 9, 8, 1], cached=[[1, 2, 3]], recent=[[8, 4]]) == [1, 2, 8, 9]


def test_a_cold_batch_takes_the_sequences_of_its_clusters():
    assert batch([[2, 1, 3], [2, 6, 1], [4, 1, 0]]) == [[1, 2, 3], [1, 2, 6], [1, 4, 0]]


def test_equal_contexts_get_equal_orders():
    assert batch([[1, 2, 3], [3, 2, 1]]) == [[1, 2, 3]] * 2


def test_a_cluster_starts_with_what_is_cached_of_it():
    assert batch([[1, 2, 3, 4], [1, 2, 3, 5]], cached=[[3, 1]]) == [[3, 1, 2, 4], [3, 1, 2, 5]]


def test_a_cluster_is_dissolved_where_its_parts_find_more_in_the_cache():
    cached = [[7, 1, 2, 3], [8, 1, 4, 5]]
    assert batch([[1, 2, 3, 7], [1, 4, 5, 8]], cached=cached) == [[7, 1, 2, 3], [8, 1, 4, 5]]


def test_a_cluster_is_kept_where_the_cache_is_worth_less():
    contexts = [[1, 2, 3, 7], [1, 2, 3, 8]]
    assert batch(contexts, cached=[[7], [8]]) == contexts


def test_an_empty_batch_and_empty_contexts():
    assert batch([]) == []
    assert batch([[], [1], []]) == [[], [1], []]


def test_a_large_batch_is_cut_into_windows_of_like_contexts_attached_to_one_another():
    contexts = [[2, 1, 3], [8, 7, 9], [1, 2, 4], [7, 8, 6], [5, 2, 1], [0, 8, 7]]
    assert batch(contexts, window=2) == [[2, 1, 3], [8, 7, 9], [2, 1, 4], [8, 7, 6], [2, 1, 5], [8, 7, 0]]


def test_in_windows_too_the_cache_comes_first():
    contexts = [[2, 1, 3], [8, 7, 9], [1, 2, 4], [7, 8, 6]]
    orders = batch(contexts, cached=[[1, 2], [7, 8]], window=2)
    assert orders == [[1, 2, 3], [7, 8, 9], [1, 2, 4], [7, 8, 6]]
