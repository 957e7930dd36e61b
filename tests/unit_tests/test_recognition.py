import gc
import json
import time

import pytest

from contextpilot_integrations import ContextBlock
from contextpilot_integrations.recognition import Form, Texts, escape, find_blocks, unescape

A, B, C = "The fee is 3%.", "Payment is due\r\n\r\nin 30 days.", "契約 {x} 😀"
RENDERED = "\n\n".join(
    ContextBlock(label, text).render() for label, text in zip("abc", (A, B, C), strict=True)
)
LONG = ["alpha " * 40, "beta " * 50, "gamma " * 40]


def found_in(text, **arguments):
    """What is found, group by group: (name, text) of each block."""
    return [
        [(found.name, found.text_in(text)) for found in group.found]
        for group in find_blocks(text, **arguments)
    ]


class TestRendered:
    def test_the_last_block_is_not_found_where_a_question_may_follow(self):
        assert found_in(f"{RENDERED}\n\nAnd in 2025?") == [[("[CB_a]", A), ("[CB_b]", B)]]
        assert found_in(RENDERED) == [[("[CB_a]", A), ("[CB_b]", B)]]
        assert found_in(f"[CB_a] {A}") == []

    def test_a_tool_asks_no_question(self):
        assert found_in(RENDERED, whole_text_is_data=True) == [[("[CB_a]", A), ("[CB_b]", B), ("[CB_c]", C)]]

    def test_an_order_annotation_ends_the_last_block(self):
        order = "Please read the context in the following priority order: [CB_c] > [CB_a] > [CB_b] and answer"
        prompt = f"Context:\n{RENDERED}\n\n{order}\n\nWhat?"
        assert found_in(prompt) == [[("[CB_a]", A), ("[CB_b]", B), ("[CB_c]", C)]]
        assert found_in(prompt, order_template="Lies {order}.") == [[("[CB_a]", A), ("[CB_b]", B)]]

    def test_an_order_annotation_may_begin_with_the_markers(self):
        prompt = f"{RENDERED}\n\n[CB_c] > [CB_a] > [CB_b] ist die Reihenfolge.\n\nWas?"
        found = found_in(prompt, order_template="{order} ist die Reihenfolge.")
        assert found == [[("[CB_a]", A), ("[CB_b]", B), ("[CB_c]", C)]]
        template = "{order} ist die Reihenfolge."
        assert found_in(prompt, order_template=template, whole_text_is_data=True) == found

    def test_a_known_text_ends_the_last_block(self):
        prompt = f"{RENDERED}\nWhat?"
        assert found_in(prompt, known=[A, B, C]) == [[("[CB_a]", A), ("[CB_b]", B), ("[CB_c]", C)]]
        # Were another one last, its end would not be seen: so this one stays where it is.
        assert found_in(prompt, known=[C]) == [[("[CB_a]", A), ("[CB_b]", B)], [("[CB_c]", C)]]
        assert found_in(f"{RENDERED} What?", known=[C]) == [[("[CB_a]", A), ("[CB_b]", B)]]

    def test_a_text_shown_before_under_the_same_name_ends_the_last_block_which_then_stays(self):
        shown = Texts()
        shown.add_shown(RENDERED, find_blocks(RENDERED))
        prompt = f"[CB_c] {C}\n\n[CB_b] {B}\n\nAnd now?"
        groups = find_blocks(prompt, shown=shown)
        assert [group.movable for group in groups] == [True, False]
        assert found_in(prompt, shown=shown) == [[("[CB_c]", C)], [("[CB_b]", B)]]
        assert found_in(prompt.replace("[CB_b]", "[CB_d]"), shown=shown) == [[("[CB_c]", C)]]
        assert found_in(f"[CB_a] {A} Really?", shown=shown) == []

    def test_a_known_text_may_hold_a_marker(self):
        quoting = f"It says:\n\n[CB_z] {A}\n\nand so on"
        prompt = f"[CB_a] {quoting}\n\n[CB_b] {B}\n\n[CB_c] {C}"
        assert found_in(prompt, known=[quoting])[0] == [("[CB_a]", quoting), ("[CB_b]", B)]

    def test_own_words_between_blocks_belong_to_no_block_where_the_text_is_known(self):
        prompt = f"[CB_a] {A}\n\nWhat is the fee?\n\n[CB_b] {B}\n\n[CB_c] {C}"
        assert found_in(prompt, known=[A]) == [[("[CB_a]", A)], [("[CB_b]", B)]]

    @pytest.mark.parametrize("end_of_line", ["\n", "\r\n"])
    def test_line_ends(self, end_of_line):
        prompt = (end_of_line * 2).join(["[CB_a] one", "[CB_b]", "[CB_c] two", "[CB_d]"]) + end_of_line
        expected = [("[CB_a]", "one"), ("[CB_b]", ""), ("[CB_c]", "two"), ("[CB_d]", "")]
        assert [pair for group in found_in(prompt) for pair in group] == expected

    @pytest.mark.parametrize(
        "text",
        [
            "see [CB_a] one\n\n",
            "[CB_a]one\n\n[CB_b]two\n\n",
            "[CB_far_too_long] one\n\n[CB_b c] two\n\n",
            "[cb_a] one\n\n[cb_b] two\n\n",
            "Please refer to [CB_1] in the previous conversation.\n\n",
        ],
    )
    def test_what_only_resembles_a_marker(self, text):
        assert found_in(text + "rest") == []


class TestKnown:
    def test_wherever_it_stands_as_whole_lines(self):
        prompt = f"Is this the same?\n{A}\n\n{B}\n---\n{A}\nor {A}\n{A} perhaps"
        assert found_in(prompt, known=[B, A]) == [[("", A), ("", B)], [("", A)]]

    def test_not_within_another_block(self):
        prompt = f'<document id="x">\nOne.\n{A}\n</document>'
        assert found_in(prompt, known=[A]) == [[('id "x"', f"One.\n{A}")]]

    def test_in_code_and_behind_a_block_without_end(self):
        assert found_in(f"```\n{A}\n```", known=[A]) == [[("", A)]]
        assert found_in(f"[CB_a] who knows\n{A}", known=[A]) == [[("", A)]]

    @pytest.mark.parametrize("ensure_ascii", [True, False])
    def test_in_json_strings(self, ensure_ascii):
        text = json.dumps({"file": "x", "output": f"$ cat\n{B}\r\n{C}\nok"}, ensure_ascii=ensure_ascii)
        groups = find_blocks(text, known=[B, C])
        assert [found.text_in(text) for group in groups for found in group.found] == [B, C]
        assert all(found.in_json for group in groups for found in group.found)
        assert not any(group.movable for group in groups)

    def test_in_json_as_other_writers_escape_it(self):
        text = '{"output": "a\\/b \\u003cc\\u003e\\u000d\\u000aend"}'
        assert found_in(text, known=["a/b <c>"]) == [[("", "a/b <c>")]]
        assert found_in(r'{"path": "c:\\new"}', known=["ew"]) == []

    def test_the_longest_of_those_that_stand_there(self):
        for known in (["x", "x\ny"], ["x\ny", "x"]):
            assert found_in("x\ny\nz", known=known) == [[("", "x\ny")]]
            assert found_in("x\nyz", known=known) == [[("", "x")]]

    def test_before_a_form_that_begins_with_it(self):
        assert found_in(RENDERED, known=[RENDERED]) == [[("", RENDERED)]]

    def test_nothing_is_no_text(self):
        assert found_in("a\n\n \nb", known=["", " ", "\n"]) == []


class TestXml:
    def test_documents_as_anthropic_recommends_them(self):
        prompt = """Here they are:
<documents>
  <document index="1">
    <source>annual_report.pdf</source>
    <document_content>
Revenue fell.

By 3%.
    </document_content>
  </document>
  <document index="2">
    <source>plan.xlsx</source>
    <document_content>Growth</document_content>
  </document>
</documents>

Compare."""
        (group,) = find_blocks(prompt)
        assert group.movable
        assert found_in(prompt) == [
            [('source "annual_report.pdf"', "Revenue fell.\n\nBy 3%."), ('source "plan.xlsx"', "Growth")]
        ]
        assert prompt[group.found[1].start : group.found[1].end].endswith(
            "</document_content>\n  </document>"
        )

    @pytest.mark.parametrize(
        ("attributes", "name"),
        [
            ('id="kb-7" title="T"', 'id "kb-7"'),
            ("title='It is \"so\" > that'", 'title "It is "so" > that"'),
            ('index="3"', "document 3"),
            ('name="x.py" index="3"', 'name "x.py"'),
            (f'id="{"x" * 81}"', ""),
            ('class="c"', ""),
            ("", ""),
        ],
    )
    def test_names(self, attributes, name):
        assert found_in(f"<document {attributes}>\n\na\n</document>") == [[(name, "a")]]

    @pytest.mark.parametrize("inside", ["a", "\na\n", "\r\n \r\na\r\n  "])
    def test_empty_lines_around_the_text_are_no_part_of_it(self, inside):
        assert found_in(f"<document>{inside}</document>") == [[("", "a")]]
        assert found_in(f"<document>  a {inside}\n</document>")[0][0][1].startswith("  a ")

    def test_in_one_row(self):
        prompt = "<documents><document>a</document> <document>b</document></documents> Which?"
        assert found_in(prompt) == [[("", "a"), ("", "b")]]

    def test_words_between_part_the_groups(self):
        prompt = "<document>a</document>\nand\n<document>b</document>"
        assert found_in(prompt) == [[("", "a")], [("", "b")]]

    @pytest.mark.parametrize(
        "text",
        [
            "<document>a",
            "<document>\n<document>a</document>\n</document>",
            "<document>quotes </document> itself</document>",
            "<document><documents>a</documents></document>",
            "<document/>a</document>",
            "<documentary>a</documentary>",
            "What does <document>a</document> mean?",
            "```xml\n<document>a</document>\n```",
        ],
    )
    def test_what_does_not_pair_or_is_code(self, text):
        assert found_in(text) == []

    @pytest.mark.parametrize(
        "text",
        [
            "<document>a</document>\n<document>b </document>\n<document>c</document> still b</document>",
            "<document>a</document>\n<document>b</document>\nWhat does </document> mean?",
            "<document>a\n<document>b</document>\n<document>c</document>",
            '<document>a\n[{"text": "x"}, {"text": "y"}]\n</document> still a</document>',
        ],
    )
    def test_where_a_tag_is_left_over_all_is_left_alone_that_it_may_concern(self, text):
        assert found_in(text) == []
        assert found_in(f"{text}\n<document>z") == []

    def test_what_stood_before_an_element_without_end_is_found(self):
        prompt = '<document>a</document>\n<document>b</document>\n<document>c\n[{"text": "x"}]'
        assert found_in(prompt) == [[("", "a"), ("", "b")]]

    def test_tags_that_are_spoken_of_are_none(self):
        documents = "<document>a</document>\n<document>b</document>"
        for before in ("Read the <document> tags:", "What stands from <document> to </document> counts:"):
            for after in ("Why?", "Which <document> says so?", "Is <document>a</document> right?"):
                assert found_in(f"{before}\n{documents}\n{after}") == [[("", "a"), ("", "b")]]

    def test_where_words_follow_in_the_same_line_only_the_last_tag_is_sure(self):
        prompt = "<document>a</document>\n<document>b</document>, which"
        assert found_in(prompt) == [[("", "a"), ("", "b")]]
        assert found_in(f"{prompt} <document>c</document> denies") == [[("", "a")]]

    def test_what_does_not_pair_ends_with_its_last_tag(self):
        prompt = "<document>\n<document>a</document>\n</document>\n<document>b</document>"
        assert found_in(prompt) == [[("", "b")]]


class TestJson:
    def test_the_text_within_its_escapes(self):
        written = r'[ {"id": 7, "text": "say \"hi\"\n\\n \u00e9\ud83d\ude00"} ,{"content": "b", "title":"T"}]'
        (group,) = find_blocks(written)
        first, second = group.found
        assert first.text_in(written) == 'say "hi"\n\\n é😀'
        assert (first.name, second.name) == ("id 7", 'title "T"')
        assert written[second.start : second.end] == '{"content": "b", "title":"T"}'
        assert group.movable
        assert group.reordered(written, [1, 0]) == (
            written[second.start : second.end] + " ," + written[first.start : first.end]
        )

    def test_within_prose_from_the_beginning_of_a_line(self):
        assert found_in('Results:\n  [\n{"text": "a"}\n]\nWhich?') == [[("", "a")]]
        assert found_in('Results: [{"text": "a"}]') == []

    def test_one_level_inside_the_object_that_the_text_is(self):
        written = json.dumps({"results": [{"snippet": "a", "url": "u"}], "more": [{"text": "b"}], "n": [1]})
        assert found_in(written) == [[('url "u"', "a")], [("", "b")]]
        assert found_in(f"{written} Which?") == []
        assert found_in(json.dumps({"data": {"results": [{"text": "a"}]}})) == []

    def test_the_better_text_field(self):
        assert found_in('[{"snippet": "s", "text": "t", "content": "c"}]') == [[("", "t")]]

    def test_messages_of_a_chat_keep_their_order(self):
        (group,) = find_blocks('[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]')
        assert not group.movable

    @pytest.mark.parametrize(
        "text",
        [
            "[]",
            "[{}]",
            '["a"]',
            '[{"text": "a"}, {"title": "b"}]',
            '[{"text": "a"}, 1, {"text": "b"}]',
            '[{"text": "a"}, ["x"]]',
            '[1, {"text": "a"}]',
            '[{"text": "a"}, 1]',
            '[{"text": 1}]',
            '[{"text": "a"},]',
            '[{"text": "a"} {"text": "b"}]',
            "[{'text': 'a'}]",
            '[{"text": "a"}',
            '[{"text": "a"}}',
            '[{"text": "a\nb"}]',
            r'[{"text": "\q"}]',
            '[{"text": "a", "n": 01}]',
            '[{"meta": {"text": "a"}}]',
            '[[{"text": "a"}]]',
            '{"text": "a"}',
            '```json\n[{"text": "a"}]\n```',
            '[{"text": "a", "deep": ' + "[" * 100_000 + "]" * 100_000 + "}]",
        ],
    )
    def test_what_is_no_such_array(self, text):
        assert found_in(text) == []


class TestNumbered:
    @pytest.mark.parametrize(
        ("starts", "names"),
        [
            (("[1] ", "[2] ", "[3] "), ("[1]", "[2]", "[3]")),
            (("[0] ", "[1] ", "[2] "), ("[0]", "[1]", "[2]")),
            (
                ("Document 1: ", "Document 2:\n", "Document 3:\r\n"),
                ("Document 1", "Document 2", "Document 3"),
            ),
            (("Doc [1] ", "Doc [2]: ", "Doc [3]\n"), ("Doc [1]", "Doc [2]", "Doc [3]")),
            (("passage 1: ", "passage 2: ", "passage 3: "), ("passage 1", "passage 2", "passage 3")),
        ],
    )
    def test_lists(self, starts, names):
        prompt = "\n\n".join(start + text for start, text in zip(starts, LONG, strict=True))
        items = list(zip(names, LONG, strict=True))
        assert found_in(f"Use these.\n{prompt}\n\nWhich?") == [items[:2]]
        assert found_in(f"{prompt}\n\n", whole_text_is_data=True) == [items]
        assert found_in(f"{prompt}\n\nWhich?", known=[LONG[2]]) == [items]
        shown = Texts()
        shown.add(LONG[2], names[2])
        assert found_in(f"{prompt}\n\nWhich?", shown=shown) == [items]
        assert not any(group.movable for group in find_blocks(prompt))

    @pytest.mark.parametrize(
        "text",
        [
            "\n".join(f"{number}. {text}" for number, text in enumerate(LONG, 1)),
            "\n".join(f"[{number}]: {text}" for number, text in enumerate(LONG, 1)),
            "\n".join(f"[{number}] {text}" for number, text in enumerate(LONG, 2)),
            "\n".join(f"see [{number}] {text}" for number, text in enumerate(LONG, 1)),
            f"[1] {LONG[0]}\n[3] {LONG[1]}\n",
            f"[1] {LONG[0]}\nDocument 2: {LONG[1]}\n",
            "[1] https://www.openssh.com/\n[2] https://man.openbsd.org/style.9\n\n",
            "Document 1: my passport\nDocument 2: my visa\nDocument 3: a photo\n",
            "[1] buy milk\n[2] call Ann\n[3] " + "sleep " * 100,
        ],
    )
    def test_what_is_no_list_of_passages(self, text):
        assert found_in(text + "\nWhat?") == []


def test_of_overlapping_blocks_the_one_that_begins_first_is_found():
    inner = '[{"text": "x"}]'
    assert found_in(f"<document>\n{inner}\n\n[CB_a] y\n\n</document>") == [[("", f"{inner}\n\n[CB_a] y")]]
    assert found_in(f"[CB_a] x\n{inner}\n\n[CB_b] y\n\n") == [[("[CB_a]", f"x\n{inner}")]]


def test_nothing_is_taken_for_a_block_behind_one_without_end():
    assert found_in('[CB_a] x\n\n[{"text": "x"}]\n<document>y</document>') == []


def test_forms_stand_side_by_side():
    prompt = f'[{{"text": "x"}}]\n<document>y</document>\n[CB_a] {A}\n\n[CB_b] {B}'
    assert [group.form for group in find_blocks(prompt)] == [Form.JSON, Form.XML, Form.RENDERED]


def test_a_fence_that_nothing_closes_is_no_fence():
    assert found_in("```\n<document>y</document>") == [[("", "y")]]
    assert found_in("```\na\n```\n<document>\n```\n</document>\n<document>y</document>") == [
        [("", "```"), ("", "y")]
    ]


@pytest.mark.parametrize("place", [0, 500, 999])
def test_of_many_texts_that_begin_alike_few_are_compared(place):
    class Counted(str):
        calls = 0

        def startswith(self, *args):
            Counted.calls += 1
            return super().startswith(*args)

    known = [f"Contract\nSection {number} of it\nand its text" for number in range(1000)]
    for ending in ("", " which goes on"):
        text = Counted(f"{known[place]}{ending}\n")
        assert Texts(known).ends_at(text, 0) == ([] if ending else [len(known[place])])
    assert Counted.calls < 100


def test_texts_that_begin_one_another():
    texts = Texts(["a\nb", "a", "a\nb\nd", "a\nc", "a\nb\nc"])
    assert texts.ends_at("a\nb\nd2", 0) == [3, 1]
    assert texts.ends_at("x\na\r\nb", 2) == [3]
    assert texts.ends_at("a\nb\nc", 0) == [5, 3, 1]


def test_orders_that_are_none():
    (group,) = find_blocks(f"{RENDERED}\n\n")
    for order in ([0], [0, 0], [0, 1, 2], [1, 2]):
        with pytest.raises(ValueError, match="each place from 0 to 1 once"):
            group.reordered(RENDERED, order)
    chat = '[{"role": "user", "text": "a"}, {"role": "user", "text": "b"}]'
    (group,) = find_blocks(chat)
    assert group.reordered(chat, [0, 1]) == chat[1:-1]
    with pytest.raises(ValueError, match="not movable"):
        group.reordered(chat, [1, 0])


def test_escapes():
    assert escape('a"\n\\é') == '\\"'.join(["a", "\\n\\\\é"])
    assert unescape("\\u00e9\\/") == "é/"
    for inside in ('a"b', 'a", "b', "\\q", "\\"):
        with pytest.raises(ValueError, match=r"line 1 column"):
            unescape(inside)


HOSTILE = [
    "<document>",
    "<document>\n",
    '<document a="',
    "<documents>",
    "<document></document>",
    "<document>\n</document></document>\n",
    "[CB_a] x\n\n",
    "\n[CB_a] \n",
    "\n\n[CB_a] > [CB_a]",
    "\n[1] ",
    "\n[1] \n[2] ",
    "\n[{",
    '\n[{"text": "',
    '\n[{"text": "a"},',
    "[" * 100 + "\n",
    '\n[{"a":"b"}]',
    '\n"\\',
    "\n~~~\n```",
    "known\n",
    "\r\n",
    " ",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_the_time_is_linear(hostile):
    """Sixteen times the text takes about sixteen times as long; squared it would be 256 times."""

    def seconds(characters):
        text = hostile * (characters // len(hostile))
        times = []
        for _ in range(2):
            start = time.process_time()
            find_blocks(text, known=["known\nknown\nx"])
            find_blocks(text, whole_text_is_data=True)
            times.append(time.process_time() - start)
        return min(times)

    gc.collect()
    gc.disable()
    try:
        assert seconds(160_000) < 80 * seconds(10_000) + 0.05
    finally:
        gc.enable()
