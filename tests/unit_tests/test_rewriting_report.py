from contextpilot_integrations.edits import Edit, EditKind, Place, Rewriting
from contextpilot_integrations.rewriting_report import message_texts, report_rewriting


def words(text):
    return len(text.split())


def edited(text, *changes):
    """Make replacements (kind, old, new) in a user's message after an answer, one after another."""
    edits = []
    for kind, old, new in changes:
        start = text.index(old)
        text = text[:start] + new + text[start + len(old) :]
        source = Place(0, None, 2, 5) if kind in (EditKind.BLOCK, EditKind.PASSAGE) else None
        edits.append(Edit(kind, Place(2, 0, start, start + len(new)), old, source))
    return text, tuple(edits)


PICTURE = {"type": "image_url", "image_url": {"url": "u"}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{} {}"}}
GIVEN = [
    {"role": "system", "content": "s1 s2"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "user", "content": [{"type": "text", "text": "one two three four five six"}, PICTURE]},
]


def report(*changes, after=()):
    text, edits = edited(GIVEN[2]["content"][0]["text"], *changes)
    sent = [*GIVEN[:2], {"role": "user", "content": [{"type": "text", "text": text}, PICTURE]}, *after]
    given = [*GIVEN, *after]
    assert Rewriting(sent, edits).restore() == given
    found = report_rewriting(given, Rewriting(sent, edits), words)
    return found, [text[change.place.start : change.place.end] for change in found.changes]


def test_what_a_model_reads():
    assert [*message_texts(GIVEN[1])] == ["f", "{} {}"]
    assert [*message_texts(GIVEN[2])] == ["one two three four five six"]
    assert [*message_texts({"role": "user"})] == []


def test_nothing_changed():
    assert report_rewriting(GIVEN, Rewriting(GIVEN), words).to_dict() == {
        "tokens_before": 11,
        "tokens_after": 11,
        "blocks_replaced": 0,
        "passages_replaced": 0,
        "aligned": False,
        "changes": (),
    }


def test_tokens_and_counts():
    passages = [(EditKind.PASSAGE, "five six", "P"), (EditKind.PASSAGE, "one", "Q")]
    found, _ = report((EditKind.BLOCK, "two three", "B"), *passages)
    assert (found.tokens_before, found.tokens_after) == (11, 9)
    assert (found.blocks_replaced, found.passages_replaced, found.aligned) == (1, 2, False)


def test_a_change_stands_where_it_stands_in_the_end():
    changes = [
        (EditKind.ALIGNMENT, "two three four", "four two three"),
        (EditKind.PASSAGE, "four", "P4"),
        (EditKind.PASSAGE, "six", "P6"),
        (EditKind.PASSAGE, "one", "longer than it was"),
        (EditKind.ORDER_ANNOTATION, "", "in front "),
        (EditKind.BLOCK, "five", "B5"),
    ]
    found, shown = report(*changes)
    assert shown == ["P4 two three", "P4", "P6", "longer than it was", "in front ", "B5"]
    assert [change.kind for change in found.changes] == [kind for kind, _, _ in changes]
    assert found.changes[1].source == Place(0, None, 2, 5)
    assert found.changes[0].source is None


def test_what_a_later_change_takes_up_stands_in_all_of_it():
    _, shown = report((EditKind.PASSAGE, "three", "P3"), (EditKind.ALIGNMENT, "two P3 four", "four two P3"))
    assert shown == ["four two P3"] * 2


def test_only_a_new_message_counts_as_aligned():
    change = (EditKind.ALIGNMENT, "two three", "three two")
    assert report(change)[0].aligned
    assert not report(change, after=[{"role": "assistant", "content": "yes"}])[0].aligned
