import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Outcome
from contextpilot_integrations.annotation import is_ambiguous, order_annotation


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
