import json

import pytest

from contextpilot_integrations.json_members import JsonMembers, joint_of, shown

ORDER = {"id": 7, "items": [{"n": 1, "of": "a, [b]"}, {"n": 2, "of": 'a "c"'}], "none": [], "paid": True}
TEXT = json.dumps(ORDER)
#  0 {  1 id  2 items[  3 {  4 n  5 of  6 }  7 {  8 n  9 of  10 }  11 ]  12 none[  13 ]  14 paid  15 }


def piece(text, place):
    return text[slice(*JsonMembers(text).spans[place])]


def outermost(members, at, first, last):
    return max(members.siblings(at, first, last), key=lambda run: run[1] - run[0], default=None)


@pytest.mark.parametrize(
    ("text", "joint"),
    [
        (TEXT, ", "),
        (json.dumps(ORDER, separators=(",", ":")), ","),
        (json.dumps(ORDER, indent=2), ""),
        ('{"a": 1,"b": 2}', ""),
        ('{"a" : 1}', ""),
        ('{"a":  1}', ""),
        ('{"a": "two,words: and\\tmore"}', ", "),
        ('{"a": "one\\ntwo"}', ""),
        ("[]", ","),
    ],
)
def test_what_stands_between_members(text, joint):
    assert joint_of(text) == joint


def test_pieces():
    pieces = [piece(TEXT, place) for place in range(len(JsonMembers(TEXT).spans))]
    assert pieces[:6] == ["{", '"id": 7', '"items": [', "{", '"n": 1', '"of": "a, [b]"']
    assert pieces[11:] == ["]", '"none": [', "]", '"paid": true', "}"]


@pytest.mark.parametrize(
    ("at", "first", "last", "siblings"),
    [
        (1, 0, 15, (0, 15)),  # All of it is one member.
        (1, 1, 14, (1, 14)),
        (4, 1, 9, (3, 6)),  # The other object does not end there, and neither does the array.
        (4, 4, 9, None),  # Not all of a row.
        (8, 3, 10, (3, 10)),
        (8, 2, 11, (2, 11)),
        (2, 1, 10, None),
        (11, 1, 14, (1, 14)),
        (13, 12, 13, (12, 13)),
        (12, 8, 14, (12, 14)),
    ],
)
def test_whole_siblings_around_a_piece(at, first, last, siblings):
    assert outermost(JsonMembers(TEXT), at, first, last) == siblings


def test_siblings_come_from_the_inside_out():
    assert [*JsonMembers(TEXT).siblings(5, 0, 15)] == [(3, 10), (1, 14), (0, 15)]
    assert [*JsonMembers(TEXT).siblings(5, 0, 14)] == [(3, 10), (1, 14)]


def test_what_lies_deeper_in_a_row_belongs_to_it():
    members = JsonMembers('[[{"a": [{"b": 1}, 2]}, 3]]')
    #  0 [  1 [  2 {  3 a[  4 {  5 b  6 }  7 2  8 ]  9 }  10 3  11 ]  12 ]
    assert outermost(members, 5, 4, 8) is None
    assert outermost(members, 5, 2, 9) == outermost(members, 8, 2, 9) == (2, 9)
    assert outermost(members, 10, 3, 10) == (10, 10)


def test_a_run_has_a_name_and_a_number_of_members():
    members = JsonMembers(TEXT)
    runs = {(3, 10): ("n: 1", 2), (2, 14): ("items", 3), (5, 5): ("of: a, [b]", 1), (0, 15): ("id: 7", 1)}
    for (first, last), (name, count) in runs.items():
        assert shown(piece(TEXT, members.name(first))) == name
        assert members.count(first, last) == count
    assert JsonMembers("[[]]").name(0) == 1


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 15, 'see "a"'),
        (7, 10, {**ORDER, "items": [ORDER["items"][0], 'see "a"']}),
        (1, 11, {"...": 'see "a"', "none": [], "paid": True}),
    ],
)
def test_with_a_replacement_it_stays_json(first, last, expected):
    members = JsonMembers(TEXT)
    start, end = members.spans[first][0], members.spans[last][1]
    assert json.loads(TEXT[:start] + members.replacement('see "a"', first) + TEXT[end:]) == expected
