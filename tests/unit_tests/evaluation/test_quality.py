import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from contextpilot_integrations import ContextBlock
from contextpilot_integrations.cli import app
from contextpilot_integrations.evaluation import TraceRequest
from contextpilot_integrations.evaluation.bench.paired import MeanInterval
from contextpilot_integrations.evaluation.bench.plots import plot_quality
from contextpilot_integrations.evaluation.bench.quality import (
    CONTRASTS,
    MEASURES,
    QualityResult,
    Score,
    findings,
)
from contextpilot_integrations.evaluation.bench.quality_items import (
    QualityItem,
    Selection,
    Variant,
    handbook_requests,
    neutral_sentence,
    select_items,
)

FARE, TIME, DOG, ROOM = (
    ContextBlock(name, text)
    for name, text in [
        ("fare", "The fare is 9 crowns."),
        ("time", "The first boat leaves at six."),
        ("dog", "Dogs travel free."),
        ("room", "The saloon has 40 seats."),
    ]
)
ITEM = QualityItem("q", "What is the fare?", ("9 crowns",), (FARE, TIME, DOG), (DOG, TIME, FARE), "7 crowns")


OTHER = TraceRequest("other", "other", 0, "How much?", (), ("7 crowns",))


def request(name, *blocks, query="What?", answers=("9 crowns",)):
    return TraceRequest(name, name, 0, query, blocks, answers)


# Each of them shares two passages with another one, in another order.
REQUESTS = [
    request("q0", FARE, TIME, DOG),
    request("q1", TIME, FARE, ROOM),
    request("q2", DOG, FARE, TIME),
    request("q3", ROOM, FARE, TIME),
    OTHER,
]


class TestVariants:
    def test_original_and_aligned_differ_in_the_order_alone(self):
        original, aligned = (ITEM.user_message(v, "-") for v in (Variant.ORIGINAL, Variant.ALIGNED))
        assert original == (
            "[CB_fare] The fare is 9 crowns.\n\n[CB_time] The first boat leaves at six.\n\n"
            "[CB_dog] Dogs travel free.\n\nWhat is the fare?"
        )
        assert sorted(original.split("\n\n")) == sorted(aligned.split("\n\n"))
        assert aligned.index("dog") < aligned.index("time") < aligned.index("fare")

    def test_what_is_said_stands_right_before_the_question(self):
        said = {v: ITEM.user_message(v, "Nothing of order.").split("\n\n")[3] for v in Variant}
        assert said[Variant.ORIGINAL] == said[Variant.ALIGNED] == "What is the fare?"
        assert "[CB_fare] > [CB_time] > [CB_dog]" in said[Variant.ANNOTATED]
        assert said[Variant.ORIGINAL_ANNOTATED] == said[Variant.ANNOTATED]
        assert "[CB_dog] > [CB_time] > [CB_fare]" in said[Variant.WRONG]
        assert said[Variant.NEUTRAL] == "Nothing of order."

    def test_the_annotation_is_what_a_pilot_writes(self):
        from contextpilot_integrations import ContextPilot

        batch = ContextPilot().prepare_batch([one.blocks for one in REQUESTS])
        items = {item.query_id: item for item in select_items(REQUESTS, limit=9, k=9, max_chars=99).items}
        written = {r.query_id: p.order_annotation for r, p in zip(REQUESTS, batch.plans, strict=True)}
        assert {name: item.annotation for name, item in items.items()} == {
            name: annotation for name, annotation in written.items() if annotation
        }

    @pytest.mark.parametrize("words", [20, 60, 200])
    def test_a_neutral_sentence_is_as_long_as_asked_for(self, words):
        sentence = neutral_sentence(words)
        assert abs(len(sentence.split()) - words) <= 1
        assert not {"order", "first", "priority", "last"} & set(sentence.split())


class TestSelection:
    def test_only_reordered_requests_are_taken(self):
        selection = select_items(REQUESTS, limit=9, k=9, max_chars=99)
        assert (selection.requests, selection.answerable) == (5, 4)
        assert 0 < selection.reordered == len(selection.items) < 4
        for item in selection.items:
            assert item.aligned != item.relevance
            assert sorted(item.aligned, key=repr) == sorted(item.relevance, key=repr)
            assert item.relevance == next(r.blocks for r in REQUESTS if r.query_id == item.query_id)

    def test_the_first_to_arrive_are_taken(self):
        every = {item.query_id for item in select_items(REQUESTS, limit=9, k=9, max_chars=99).items}
        selection = select_items(REQUESTS, limit=1, k=9, max_chars=99)
        assert [item.query_id for item in selection.items] == [min(every)]
        assert selection.reordered == len(every)

    def test_unanswerable_requests_are_planned_but_not_asked(self):
        others = [replace(one, answers=("10 crowns",)) for one in REQUESTS[:2]]
        nameless = [replace(REQUESTS[2], query=None), replace(REQUESTS[3], answers=())]
        selection = select_items([*REQUESTS, *others, *nameless], limit=9, k=9, max_chars=99)
        assert (selection.requests, selection.answerable) == (9, 4)

    def test_passages_are_cut_at_a_word_and_lists_at_k(self):
        items = select_items(REQUESTS, limit=9, k=2, max_chars=22).items
        sent = {block.text for item in items for block in item.relevance}
        assert {len(item.relevance) for item in items} == {2}
        assert sent <= {
            "The fare is 9 crowns.",
            "The first boat leaves",
            "Dogs travel free.",
            "The saloon has 40",
        }
        assert len(sent) > 1

    def test_the_wrong_answer_is_alike_and_in_no_passage(self):
        more = [request("x", answers=(a,)) for a in ("at six", "the 9 crowns", "40 seats", "8 crowns")]
        for item in select_items([*more[:3], *REQUESTS, *more[3:]], limit=9, k=9, max_chars=99).items:
            assert item.wrong_answer == "7 crowns"
        with pytest.raises(ValueError, match="no other request's answer is wrong for '9 crowns'"):
            select_items(REQUESTS[:4], limit=9, k=9, max_chars=99)

    @pytest.mark.parametrize("name", ["limit", "k", "max_chars"])
    def test_numbers_are_at_least_1(self, name):
        with pytest.raises(ValueError, match="must be at least 1, not 0"):
            select_items(REQUESTS, **{"limit": 9, "k": 9, "max_chars": 99, name: 0})

    def test_where_nothing_can_be_told_the_reason_is(self):
        with pytest.raises(ValueError, match="stands in one of its passages"):
            select_items(REQUESTS, limit=9, k=9, max_chars=5)
        with pytest.raises(ValueError, match="nothing to compare"):
            select_items([REQUESTS[0], OTHER], limit=9, k=9, max_chars=99)


def test_the_handbook_gives_100_reordered_questions_whose_answers_were_retrieved():
    pytest.importorskip("bm25s")
    pytest.importorskip("langchain_core")
    requests = handbook_requests(6)
    assert len({one.query for one in requests}) == len({one.query_id for one in requests}) == len(requests)
    selection = select_items(requests, limit=100, k=6, max_chars=700)
    assert selection.answerable == selection.requests == len(requests) > 120
    assert len(selection.items) == 100
    with pytest.raises(ValueError, match="k must be at most 96"):
        handbook_requests(97)


def score(likelihood, match=1.0):
    return Score(likelihood, likelihood + 5, match, match / 2, 700, "an answer")


def result(**changed):
    """Two items; each variant has the likelihoods -2 and -4, unless it is named."""
    scores = {v: (score(-2.0), score(-4.0)) for v in Variant}
    scores.update({Variant[name]: tuple(map(score, values)) for name, values in changed.items()})
    return QualityResult("small", Selection(9, 5, 4, (ITEM, ITEM)), scores)


class TestResult:
    def test_differences_are_paired(self):
        found = result(ALIGNED=(-3.0, -5.0)).difference(Variant.ALIGNED, Variant.ORIGINAL, "log_likelihood")
        assert found.interval == MeanInterval(-1.0, -1.0, -1.0)  # Unpaired, -2 and -4 would blur it.

    def test_every_contrast_has_every_measure(self):
        figures = result().to_dict()
        assert len(figures["differences"]) == len(CONTRASTS) * len(MEASURES) == 32
        assert [row["variant"] for row in figures["variants"]] == [v.value for v in Variant]
        assert figures["variants"][0] == {
            "variant": "original",
            "prompt_tokens": 700,
            "log_likelihood": -3.0,
            "margin": 2.0,
            "match": 1.0,
            "f1": 0.5,
        }
        assert (figures["items"], figures["requests"], figures["reordered"]) == (2, 9, 4)
        json.dumps(figures)

    def test_findings_say_what_the_intervals_show_and_no_more(self):
        alone, shipped, *_, caveat = findings(result(ALIGNED=(-3.0, -5.0), ANNOTATED=(-1.0, -5.0)))
        assert alone == (
            "Reordering alone: the right answer's likelihood falls (-1.000 nats a token, -1.000 to -1.000); "
            "its lead over a wrong answer falls (-1.000 nats a token, -1.000 to -1.000)."
        )
        assert "likelihood shows no change (+0.000" in shipped
        assert "says nothing about larger models" in caveat
        better, *_ = findings(result(ALIGNED=(-1.0, -3.0)))
        assert "likelihood rises (+1.000" in better

    def test_the_picture_is_drawn(self, tmp_path):
        pytest.importorskip("matplotlib")
        plot_quality(result(ALIGNED=(-3.0, -6.0)), tmp_path / "quality.svg")
        assert "annotation, against aligned" in (tmp_path / "quality.svg").read_text()


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["--blocks", "blocks.jsonl"], "--blocks goes with --trace"),
        (["--trace", "gone.jsonl"], "gone.jsonl: cannot be read"),
        (["--trace", "-", "--items", 0], "items must be at least 1"),
        (["--trace", "-", "--k", 0], "k must be at least 1"),
        (["--trace", "-", "--max-chars", 0], "max_chars must be at least 1"),
        (["--trace", "-"], 'no request has a question ("query")'),
        (["--trace", "-", "--plot", "missing/picture.png"], "there is no folder missing"),
    ],
)
def test_bad_input_exits_with_2_and_one_line(args, reason):
    if "--plot" in args:
        pytest.importorskip("matplotlib")
    outcome = CliRunner().invoke(
        app, ["bench", "quality", *map(str, args)], input='{"query_id": 1, "block_ids": [1]}'
    )
    assert (outcome.exit_code, outcome.stdout) == (2, "")
    assert reason in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_a_server_that_does_not_answer_is_named(tmp_path):
    pytest.importorskip("httpx")
    trace = tmp_path / "trace.jsonl"
    lines = [
        {
            "query_id": one.query_id,
            "query": one.query,
            "answer": one.answers[0],
            "blocks": [{"id": block.id, "text": block.text} for block in one.blocks],
        }
        for one in REQUESTS
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = ["bench", "quality", "--trace", str(trace), "--base-url", "http://127.0.0.1:9/v1"]
    outcome = CliRunner().invoke(app, args)
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("contextpilot: http://127.0.0.1:9: cannot be reached")
