import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("langchain_core")

from contextpilot_integrations.demo.handbook import questions
from contextpilot_integrations.demo.passes import Answer, Pass
from contextpilot_integrations.demo.report import draw, print_report
from contextpilot_integrations.engines.usage import Usage


def one(name, cached, preamble=10):
    answers = tuple(
        Answer("text", Usage(100, 5, tokens), ttft)
        for tokens, ttft in zip(cached, (3.0, 1.0, 2.0), strict=True)
    )
    return Pass(name, answers, answers, preamble)


def test_the_preamble_counts_on_no_side():
    ours = one("ours", [10, 70, 9])
    assert ours.cached_tokens == [0, 60, 0]
    assert ours.hit_ratio == 60 / 270
    assert ours.prompt_tokens == 300
    assert (ours.ttft_total, ours.ttft_median) == (6.0, 2.0)


def test_prompts_that_were_not_counted_are_not_empty():
    answers = (Answer("text", Usage(), 1.0),)
    assert Pass("x", answers, answers, None).prompt_tokens is None


@pytest.mark.parametrize("unknown", [one("x", [10, None, 9]), one("x", [10, 10, 10], preamble=None)])
def test_unknown_is_not_zero(unknown, tmp_path, capsys):
    assert unknown.cached_tokens is None
    assert unknown.hit_ratio is None
    passes = [unknown] * 3
    assert not draw(passes, tmp_path / "demo.png")
    assert not (tmp_path / "demo.png").exists()
    print_report(questions()[:3], passes, 0.5, "a server")
    printed = " ".join(capsys.readouterr().out.split())
    assert "unknown" in printed
    assert "--enable-prompt-tokens-details" in printed
