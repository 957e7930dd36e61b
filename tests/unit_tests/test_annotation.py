import re

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Outcome
from contextpilot_integrations.annotation import is_ambiguous, order_annotation
from contextpilot_integrations.conversation import rewrite


def test_the_wording_is_configurable():
    blocks = [ContextBlock("b"), ContextBlock("a")]
    assert order_annotation(blocks, "Wichtigkeit: {order}.") == "Wichtigkeit: [CB_b] > [CB_a]."
    pilot = ContextPilot(order_template="{order}; {other} braces")
    pilot.prepare(blocks)
    assert pilot.prepare(blocks[::-1]).order_annotation == "[CB_a] > [CB_b]; {other} braces"


def test_a_template_without_a_place_for_the_order_is_refused():
    with pytest.raises(ValueError, match=r'order_template must be a str that contains "\{order\}"'):
        ContextPilot(order_template="In order, please.")


@pytest.mark.parametrize(
    "blocks",
    [
        [ContextBlock(1), ContextBlock("1")],
        [ContextBlock("a", "one"), ContextBlock("a", "two")],
        [ContextBlock("a"), ContextBlock("b", "quotes [CB_a] itself")],
    ],
)
def test_a_request_with_ambiguous_markers_goes_out_as_it_came(blocks):
    assert is_ambiguous(blocks)
    pilot = ContextPilot()
    pilot.prepare([ContextBlock("c"), *blocks[::-1]])
    for plan in (pilot.prepare(blocks), pilot.prepare_batch([blocks]).plans[0]):
        assert plan.outcome is Outcome.LABEL_COLLISION
        assert list(plan.blocks) == blocks
        assert plan.order_annotation == ""
    assert pilot.outcomes[Outcome.LABEL_COLLISION] == 3


def test_what_goes_out_as_it_came_is_cached_all_the_same():
    blocks = [ContextBlock(1), ContextBlock("1"), ContextBlock(2)]
    pilot = ContextPilot()
    pilot.prepare(blocks)
    assert pilot.prepare(blocks).expected_cached_blocks == 3


@pytest.mark.parametrize(
    ("name", "template", "reason"),
    [
        ("location_template", "It is above.", 'must be a str that contains "{source}"'),
        ("location_template", "Please refer\nto {source}", "must be one line"),
        ("location_template", "{source}", "must have words of its own beside {source}, at least 8 bytes"),
        ("location_template", "See {source}.", "must have words of its own"),
        ("location_template", "Please refer to {source}, {source}", "must have no places but"),
        (
            "location_template",
            "Please refer to {range} of {source}",
            "must have no places but {source}, and each only once",
        ),
        ("passage_template", "{source}, shown above", 'must be a str that contains "{range}"'),
        (
            "passage_template",
            "{range} {source}",
            "must have words of its own beside {range} and {source} and",
        ),
        ("passage_template", '{quote}{quote} in {range} of "{source}"', "must have no places but"),
    ],
)
def test_a_wording_that_other_lines_could_have_is_refused(name, template, reason):
    with pytest.raises(ValueError, match=re.escape(f"{name} {reason}")) as raised:
        ContextPilot(**{name: template})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("location", "passage"),
    [("see {source} above", "[{range} of {source}]"), ("见上文{source}", "{range}: shown in {source}")],
)
def test_a_short_wording_is_told_from_other_lines(location, passage):
    text = "\n".join(f"line {number} of the text, which is rather long, and shown" for number in range(20))
    messages = [{"role": "tool", "content": f"{one}\n{text}"} for one in ("a", "b")]
    pilot = ContextPilot(location_template=location, passage_template=passage, on_error="raise")
    rewriting = rewrite(messages, pilot=pilot)
    assert [edit.kind for edit in rewriting.edits] == ["passage"]
    assert rewrite(rewriting.messages, pilot=pilot).edits == ()
