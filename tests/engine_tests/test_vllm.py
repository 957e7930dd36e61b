"""What the package believes of vLLM, held against vLLM.

That counts are absent without ``--enable-prompt-tokens-details`` would take a second server to see; the unit
tests of `read_usage` hold such an answer.
"""

from collections.abc import Sequence

import openai
import pytest

from contextpilot_integrations import ContextPilot, Plan
from contextpilot_integrations.demo.handbook import passages, questions
from contextpilot_integrations.engines import Usage, UsageStream, read_usage
from contextpilot_integrations.engines.cache_size import CacheSize, ask_cache_size
from contextpilot_integrations.evaluation import build_prompt, simulate_tokens

BLOCK = 32
TEXT = "\n\n".join(passage.text for passage in passages()[:3])
QUESTIONS = [question.question for question in questions()]


def ask(client, text, **settings):
    return client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": text}],
        **{"max_tokens": 1, "temperature": 0, **settings},
    )


def cached(answer) -> int | None:
    return read_usage(answer).cached_tokens


def full_blocks(usage: Usage) -> int:
    """What a repeat can hit: whole blocks, and never the last token, whose logits are needed."""
    return (usage.prompt_tokens - 1) // BLOCK * BLOCK


# Cached tokens


def test_a_cold_prompt_has_nothing_cached_and_its_repeat_all_full_blocks(client):
    first, repeat = (read_usage(ask(client, TEXT)) for _ in range(2))
    assert (first.cached_tokens, first.completion_tokens) == (0, 1)
    assert repeat.cached_tokens == full_blocks(repeat) > 0


def test_a_stream_reports_what_a_plain_answer_does(client):
    plain = [read_usage(ask(client, TEXT)) for _ in range(2)][-1]
    stream = UsageStream(ask(client, TEXT, stream=True, stream_options={"include_usage": True}))
    assert len(list(stream)) > 1
    assert stream.usage == plain


def test_a_stream_that_was_not_asked_for_counts_has_none(client):
    stream = UsageStream(ask(client, TEXT, stream=True))
    assert list(stream)
    assert stream.usage == Usage(None, None, None)


def test_a_text_completion_has_counts_too(client):
    usages = [
        read_usage(client.completions.create(model="tiny", prompt=TEXT, max_tokens=1)) for _ in range(2)
    ]
    assert [usage.cached_tokens for usage in usages] == [0, full_blocks(usages[0])]


def test_a_reset_makes_the_cache_cold(server, client):
    ask(client, TEXT)
    server.reset_prefix_cache()
    assert cached(ask(client, TEXT)) == 0


# Plans


def written(plan: Plan, question: str) -> str:
    return build_prompt(plan.blocks, query=question, order_annotation=plan.order_annotation)


def run(client: openai.OpenAI, prompts: Sequence[str], tokens) -> list[int]:
    """Send prompts one after another; the cached tokens of each, which are those foretold."""
    usages = [read_usage(ask(client, prompt)) for prompt in prompts]
    ids = [tokens(prompt) for prompt in prompts]
    assert [usage.prompt_tokens for usage in usages] == [len(prompt) for prompt in ids]
    foretold = simulate_tokens([prompt[:-1] for prompt in ids], page_size=BLOCK)
    hits = [usage.cached_tokens for usage in usages]
    assert hits == list(foretold.hits_per_request)
    return hits


def test_aligned_prompts_hit_what_their_plans_expect_and_more_than_the_original_order(
    server, client, contexts, tokens
):
    original = run(
        client, [build_prompt(c, query=q) for c, q in zip(contexts, QUESTIONS, strict=True)], tokens
    )

    server.reset_prefix_cache()
    pilot = ContextPilot()
    plans = [pilot.prepare(context) for context in contexts]
    online = run(client, [written(p, q) for p, q in zip(plans, QUESTIONS, strict=True)], tokens)
    assert_hits_are_as_expected(plans, online, tokens)

    server.reset_prefix_cache()
    batch = ContextPilot().prepare_batch(contexts)
    plans = [batch.plans[place] for place in batch.schedule]
    offline = run(client, [written(batch.plans[p], QUESTIONS[p]) for p in batch.schedule], tokens)
    assert_hits_are_as_expected(plans, offline, tokens)

    assert 2 * sum(original) < sum(online) < sum(offline)


def assert_hits_are_as_expected(plans: Sequence[Plan], hits: Sequence[int], tokens) -> None:
    """Hold that all full pages up to the last block expected were hit, and something was expected."""
    assert sum(plan.expected_cached_blocks for plan in plans) > len(plans)
    for plan, hit in zip(plans, hits, strict=True):
        expected = plan.blocks[: plan.expected_cached_blocks]
        text = build_prompt(expected)
        shared = len(tokens(text, until=text)) if expected else 0
        assert hit >= shared // BLOCK * BLOCK, plan.search_path


# The cache's size


def test_the_server_tells_how_much_its_cache_holds(server):
    assert ask_cache_size(server.base_url) == CacheSize(server.blocks * BLOCK)


# Tenants


def test_a_salt_keeps_tenants_apart(client):
    def cached_for(**body):
        return cached(ask(client, TEXT, extra_body=body))

    assert cached_for(cache_salt="a") == 0
    assert cached_for(cache_salt="b") == 0
    assert cached_for() == 0
    assert cached_for(cache_salt="a") == cached_for(cache_salt="b") == cached_for() > 0


def test_an_empty_salt_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="cache_salt"):
        ask(client, TEXT, extra_body={"cache_salt": ""})


# Requests


def test_a_request_id_comes_back_with_vllms_prefix(client):
    raw = client.chat.completions.with_raw_response.create(
        model="tiny",
        messages=[{"role": "user", "content": "?"}],
        max_tokens=1,
        extra_headers={"X-Request-Id": "r-1"},
    )
    assert raw.headers["X-Request-Id"] == "r-1"
    assert raw.parse().id == "chatcmpl-r-1"


def test_a_request_id_in_the_body_comes_back_too(client):
    assert ask(client, "?", extra_body={"request_id": "r-2"}).id == "chatcmpl-r-2"


def test_a_stream_that_is_cut_off_ends_the_request_and_leaves_its_blocks_cached(server, client):
    stream = ask(client, TEXT, stream=True, max_tokens=7000, extra_body={"ignore_eos": True})
    next(stream)
    stream.close()
    usage = read_usage(ask(client, TEXT))
    assert usage.cached_tokens == full_blocks(usage)
    server.reset_prefix_cache()  # It would not succeed while the request went on.
