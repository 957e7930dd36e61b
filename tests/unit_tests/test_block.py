import base64
import subprocess
import sys

import pytest

from contextpilot_integrations import ContextBlock
from contextpilot_integrations.block import labels_of


class Index:
    def __index__(self):
        return 7


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, "1"),
        (1, (1,)),
        (("a", "b"), ("ab",)),
        ((("a",), "b"), (("a", "b"),)),
        ("", ()),
        ("s1:", "1"),
        (2**64, 2**64 + 1),
        (2**70, -(2**70)),
    ],
)
def test_ids_that_look_alike_differ(left, right):
    assert ContextBlock(left) != ContextBlock(right)
    assert ContextBlock(left).digest != ContextBlock(right).digest


def test_an_id_cannot_run_over_into_the_text():
    assert ContextBlock("a", "bc").digest != ContextBlock("ab", "c").digest


def test_a_label_is_the_beginning_of_the_digest_in_base32():
    for number in range(300):
        block = ContextBlock("an id too long to show", str(number))
        assert block.label == base64.b32encode(block.digest).decode()[:6].lower()


@pytest.mark.parametrize("id", ["a", 7, 0, 10**9, "an id too long to show", ("a", 1), Index()])
@pytest.mark.parametrize("text", ["", "one", "é" * 40, "\ud800"])
def test_the_labels_of_an_id_are_those_of_its_blocks(id, text):
    expected = [ContextBlock(id, text).label, ContextBlock(id, text + " and more").label]
    assert list(labels_of(id)([text, " and more"])) == expected


def test_the_same_id_with_another_text_is_another_block():
    assert ContextBlock("a", "one") != ContextBlock("a", "two")
    assert ContextBlock("a", "one").digest != ContextBlock("a", "two").digest


def test_metadata_is_no_part_of_the_identity():
    left, right = ContextBlock("a", "text", {"score": 1}), ContextBlock("a", "text", {"score": 2})
    assert left == right
    assert hash(left) == hash(right)
    assert left.digest == right.digest
    assert left.render() == right.render()


def test_whatever_is_an_integer_is_an_int_id():
    assert ContextBlock(Index()).id == 7
    assert ContextBlock((Index(), "a")).id == (7, "a")


@pytest.mark.parametrize("id", [None, 1.5, b"a", ["a"], ("a", None)])
def test_other_ids_are_refused_with_the_remedy(id):
    with pytest.raises(TypeError, match=r"pass str\(id\)"):
        ContextBlock(id)


def test_a_text_that_is_no_string_is_refused():
    with pytest.raises(TypeError, match="text of block 'a' must be a str, not NoneType"):
        ContextBlock("a", None)


@pytest.mark.parametrize(
    ("id", "label"),
    [("doc-1_a.", "doc-1_a."), (2, "2"), (-5, "-5"), (99_999_999, "99999999"), ("a", "a")],
)
def test_a_short_plain_id_is_the_label(id, label):
    assert ContextBlock(id).label == label


@pytest.mark.parametrize(
    "id",
    ["", "nine-char", "a b", "ä", "[x]", "a\n", 100_000_000, pytest.param(10**5000, id="huge"), (1,), "١"],
)
def test_any_other_label_is_six_base32_characters_of_the_digest(id):
    label = ContextBlock(id, "text").label
    assert len(label) == 6
    assert set(label) <= set("abcdefghijklmnopqrstuvwxyz234567")
    assert label != ContextBlock(id, "another text").label


def test_rendering():
    assert ContextBlock(2, "Some\n\ntext ").render() == "[CB_2] Some\n\ntext "
    assert ContextBlock(2).render() == "[CB_2]"


def test_lone_surrogates_have_a_digest():
    assert ContextBlock("\ud800", "\udfff").digest != ContextBlock("\ud801", "\udfff").digest


def test_neither_text_nor_metadata_is_shown():
    assert repr(ContextBlock("a", "secret", {"key": "hidden"})) == "ContextBlock(id='a')"


@pytest.mark.parametrize("id", [10**5000, ("a", (-(10**5000),))], ids=["int", "tuple"])
def test_an_id_that_python_does_not_print_is_shown_by_its_type(id):
    shown = f"<{type(id).__name__} too long to show>"
    assert repr(ContextBlock(id)) == f"ContextBlock(id={shown})"
    with pytest.raises(TypeError, match=f"text of block {shown} must be a str"):
        ContextBlock(id, None)


def test_a_digest_is_the_same_in_every_process():
    code = "from contextpilot_integrations import ContextBlock as B; print(B(('x', 1), 'text').digest.hex())"
    for seed in ("1", "2"):
        output = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        )
        assert output.stdout.strip() == ContextBlock(("x", 1), "text").digest.hex()
