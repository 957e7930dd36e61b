import pytest

from contextpilot_integrations.evaluation.answers import contains_answer, normalized, token_f1


def test_words_are_compared_without_case_punctuation_and_articles():
    assert normalized("  The Cost: 1.20 crowns,\nan hour!") == ["cost", "120", "crowns", "hour"]
    assert normalized("Anthem of a theatre") == ["anthem", "of", "theatre"]
    assert normalized("the ... a") == []


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("It costs 28 crowns.", ["28 crowns"], True),
        ("It costs 28\ncrowns", ["28 Crowns!"], True),
        ("28 of the crowns", ["28 crowns"], False),
        ("It costs 128 crowns.", ["28 crowns"], False),
        ("crowns 28", ["28 crowns"], False),
        ("28 crowns", ["It costs 28 crowns"], False),
        ("on foot", ["by boat", "on foot"], True),
        ("anything", ["the"], False),
        ("", ["28 crowns"], False),
        ("anything", [], False),
    ],
)
def test_an_answer_stands_in_a_text(text, answers, expected):
    assert contains_answer(text, answers) is expected


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("the 28 crowns", ["28 crowns"], 1.0),
        ("crowns 28", ["28 crowns"], 1.0),
        ("it costs 28 crowns", ["28 crowns"], 2 * (2 / 4) * 1 / (2 / 4 + 1)),
        ("28 28", ["28 crowns"], 0.5),
        ("on foot", ["by boat", "foot"], 2 / 3),
        ("nothing", ["28 crowns"], 0.0),
        ("", [""], 0.0),
        ("anything", [], 0.0),
    ],
)
def test_f1_is_the_harmonic_mean_of_precision_and_recall(text, answers, expected):
    assert token_f1(text, answers) == pytest.approx(expected)
