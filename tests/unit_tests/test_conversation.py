"""Conversations: what is left out of a message, what is not, and what is remembered."""

import json
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Namespace, Outcome
from contextpilot_integrations.annotation import ORDER_TEMPLATE
from contextpilot_integrations.conversation import rewrite
from contextpilot_integrations.deduplication import Transcript
from contextpilot_integrations.edits import EditKind

BLOCKS = {
    n: ContextBlock(
        n, "\n".join(f"Chapter {n}, sentence {k}: something that is worth being said." for k in range(6))
    )
    for n in range(1, 10)
}
FILE = "\n".join(f"line {n} of the file says that {n * n} is the square of {n}" for n in range(1, 401))


def system(text):
    return {"role": "system", "content": text}


def user(*blocks, question="What now?"):
    return {"role": "user", "content": "\n\n".join([*(BLOCKS[n].render() for n in blocks), question])}


def answer(text="So it is."):
    return {"role": "assistant", "content": text}


def call(*paths):
    calls = [
        {
            "id": f"call_{path}_{n}",
            "type": "function",
            "function": {"name": "read_file", "arguments": json.dumps({"path": path})},
        }
        for n, path in enumerate(paths)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(path, text, n=0):
    return {"role": "tool", "tool_call_id": f"call_{path}_{n}", "content": text}


def sent(messages, **options):
    rewriting = rewrite(messages, pilot=ContextPilot(on_error="raise"), **options)
    assert rewriting.restore() == list(messages)
    return [message["content"] for message in rewriting.messages]


def test_a_block_of_an_earlier_turn_gives_way_to_an_annotation():
    *_, second = sent([user(1, 2, 4), answer(), user(1, 5, 2)], blocks=[BLOCKS[n] for n in (1, 5, 2)])
    assert second == (
        "Please refer to [CB_1] in the previous conversation.\n\n"
        f"{BLOCKS[5].render()}\n\n"
        "Please refer to [CB_2] in the previous conversation.\n\n"
        "What now?"
    )


def test_bare_questions_and_answers_prove_nothing():
    messages = [{"role": "user", "content": "What now?"}, answer(), user(1, 5, 2)]
    assert sent(messages, blocks=BLOCKS.values()) == [message["content"] for message in messages]


def test_a_first_message_is_aligned_and_says_so():
    pilot = ContextPilot()
    rewrite([system("Be brief."), user(1, 2, 3, question="Who?")], pilot=pilot, blocks=BLOCKS.values())
    messages = [system("Be brief."), user(4, 2, 1, question="Why?")]
    rewriting = rewrite(messages, pilot=pilot, blocks=BLOCKS.values())
    assert rewriting.messages[1]["content"] == "\n\n".join(
        [
            *(BLOCKS[n].render() for n in (1, 2, 4)),
            ORDER_TEMPLATE.replace("{order}", "[CB_4] > [CB_2] > [CB_1]"),
            "Why?",
        ]
    )
    assert rewriting.restore() == messages


def test_another_preamble_is_another_cache():
    pilot = ContextPilot()
    rewrite([system("Be brief."), user(1, 2, 3)], pilot=pilot, blocks=BLOCKS.values())
    messages = [system("Be thorough."), user(3, 2, 1)]
    assert rewrite(messages, pilot=pilot, blocks=BLOCKS.values()).messages == messages


def test_blocks_in_a_system_message_are_aligned_on_every_turn():
    pilot = ContextPilot()

    def instructions(*blocks):
        return system("\n\n".join(["Answer from this.", *(BLOCKS[n].render() for n in blocks), "Be brief."]))

    rewrite([instructions(1, 2, 3), user()], pilot=pilot, blocks=BLOCKS.values())
    later = [instructions(2, 1, 5), user(), answer(), user(question="And then?")]
    # The last block's end is not known to a later turn, so the caller has to know its text.
    first = rewrite(later, pilot=pilot).messages[0]["content"]
    assert first.index("[CB_1]") < first.index("[CB_2]") < first.index("[CB_5]")


def test_turn_one_was_reordered_and_turn_two_repeats_it():
    pilot = ContextPilot(on_error="raise")
    rewrite([user(1, 2, 3, question="Who?")], pilot=pilot, blocks=BLOCKS.values())
    first = [user(3, 2, 1)]
    aligned = rewrite(first, pilot=pilot, blocks=BLOCKS.values())
    assert aligned.edits[0].kind is EditKind.ALIGNMENT
    second = rewrite([*first, answer(), user(2, 7)], pilot=pilot, blocks=BLOCKS.values())
    assert second.messages[:1] == aligned.messages
    assert second.messages[2]["content"].startswith("Please refer to [CB_2] in the previous")
    # A client that keeps what was sent instead fares alike.
    kept = rewrite([*aligned.messages, answer(), user(2, 7)], pilot=pilot, blocks=BLOCKS.values())
    assert kept.messages == second.messages


def test_two_sessions_that_begin_alike_stay_apart():
    pilot = ContextPilot(on_error="raise")
    start = [system("Be brief."), user(1, 2)]
    one, two = [*start, answer("One."), user(1, 3)], [*start, answer("Two."), user(2, 4)]
    for _ in range(2):
        for conversation in (one, two):
            now = rewrite(conversation, pilot=pilot, blocks=BLOCKS.values())
            assert now.restore() == conversation
            assert now.messages[:3] == conversation[:3]
            assert "Please refer to" in now.messages[3]["content"]
    assert "[CB_4] Chapter 4" in now.messages[3]["content"]


def test_a_retry_goes_out_as_before():
    pilot = ContextPilot(on_error="raise")
    messages = [user(1, 2, 4), answer(), user(1, 5, 2)]
    first = rewrite(messages, pilot=pilot, blocks=BLOCKS.values())
    assert rewrite(messages, pilot=pilot, blocks=BLOCKS.values()) == first
    assert rewrite(messages, pilot=pilot) == first


@pytest.mark.parametrize(
    "history", [[], [{"role": "user", "content": "[summary of what was said]"}, answer()]]
)
def test_what_a_trimmed_history_has_lost_is_sent_again(history):
    pilot = ContextPilot(on_error="raise")
    whole = [user(1, 2, 4), answer(), user(1, 5, 2)]
    rewrite(whole, pilot=pilot, blocks=BLOCKS.values())
    trimmed = [*history, whole[-1]]
    assert rewrite(trimmed, pilot=pilot, blocks=BLOCKS.values()).messages == trimmed


def test_a_first_occurrence_that_is_edited_later_counts_no_more():
    pilot = ContextPilot(on_error="raise")
    messages = [call("a.txt"), result("a.txt", FILE), call("b.txt"), result("b.txt", FILE)]
    assert (
        rewrite(messages, pilot=pilot).messages[3]["content"]
        == "Please refer to a.txt in the previous conversation."
    )
    edited = [messages[0], result("a.txt", "[cleared to save room]"), *messages[2:]]
    assert rewrite(edited, pilot=pilot).messages == edited


def test_a_changed_line_costs_two_annotations_and_not_a_copy():
    changed = FILE.replace("line 200 ", "line CC ")
    *_, again = sent([call("a.txt"), result("a.txt", FILE), call("a.txt"), result("a.txt", changed)])
    assert again.split("\n") == [
        '[lines 1-199 of a.txt, shown above: "line 1 of the file says that 1 is the"]',
        "line CC of the file says that 40000 is the square of 200",
        '[lines 201-400 of a.txt, shown above: "line 201 of the file says that 40401 is"]',
    ]


WAITING = "2026-01-01 12:00:00 INFO waiting for the lock on the table of orders"


@pytest.mark.parametrize(
    ("text", "annotations"),
    [
        ("\n".join([WAITING] * 2000), ["[499 times lines 1-4 of a.log"]),
        ("\n".join([WAITING] * 1999), ["[498 times lines 1-4 of a.log"]),
        ("\n".join([WAITING, "It goes on.", ""] * 700), ["[174 times lines 1-12 of a.log"]),
        ("\n\n".join([WAITING] * 2000), ["[498 times lines 1-8 of a.log", "[lines 1-7 of a.log"]),
        (json.dumps({"log": "\n".join([WAITING] * 2000)}), ["[499 times lines 1-4 of a.log"]),
        (json.dumps([f"{WAITING} {WAITING} {WAITING} {WAITING}"] * 99), ['"[98 times 1 item of a.log']),
    ],
    ids=["lines", "a rest", "several lines", "empty lines between", "JSON string", "JSON items"],
)
def test_what_is_repeated_right_behind_itself_costs_one_annotation(text, annotations):
    messages = [call("a.log"), result("a.log", text)]
    rewriting = rewrite(messages, pilot=ContextPilot(on_error="raise"))
    once = rewriting.messages[1]["content"]
    assert [once[edit.place.start :].partition(", shown")[0] for edit in rewriting.edits] == annotations
    assert rewriting.restore() == messages
    assert rewrite(rewriting.messages).edits == ()


def test_what_was_repeated_is_pointed_at_as_often():
    text = "\n".join([WAITING] * 2000)
    changed = "\n".join([*[WAITING] * 1000, "Now it goes on.", *[WAITING] * 999])
    *_, again = sent([call("a.log"), result("a.log", text), call("b.log"), result("b.log", changed)])
    shown = ' of a.log, shown above: "2026-01-01 12:00:00 INFO waiting for the"]'
    assert again.split("\n") == [
        f"[250 times lines 1-4{shown}",
        "Now it goes on.",
        f"[249 times lines 1-4{shown}",
        *[WAITING] * 3,
    ]


@pytest.mark.parametrize(
    "rows",
    [[{"event": WAITING, "seen": 1}] * 1000, [{f"field {n}": WAITING for n in range(1000)}]],
    ids=["alike", "one"],
)
def test_rows_that_stay_are_not_compared_each_with_all(rows, monkeypatch):
    compared = []
    agrees = Transcript._agrees
    monkeypatch.setattr(Transcript, "_agrees", lambda *args: compared.append(1) or agrees(*args))
    again = [*rows[:-1], {**rows[-1], "and": "more"}]
    texts = [json.dumps(rows), json.dumps(again)]
    assert sent([call("a", "b"), result("a", texts[0]), result("b", texts[1], 1)])[1:] == texts
    assert len(compared) < 100_000  # Each with all would be 16 million.


def test_lines_are_counted_from_a_files_beginning_though_it_is_empty():
    given = [
        user(),
        call("a.txt"),
        result("a.txt", "\n\n" + FILE),
        call("b.txt"),
        result("b.txt", f"New.\n{FILE[400:4000]}\nOld."),
    ]
    assert given[2]["content"].split("\n")[9] == "line 8 of the file says that 64 is the square of 8"
    annotation = sent(given)[-1].split("\n")[2]
    assert annotation.startswith("[lines 11-")


@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_a_block_that_is_only_how_a_file_begins_is_not_called_as_all_of_it(end):
    def asked(lines):
        document = f"<document>\n{lines}\n</document>\nWhat now?"
        return [
            user(),
            call("a.txt"),
            result("a.txt", FILE + end),
            answer(),
            {"role": "user", "content": document},
        ]

    excerpt = "\n".join(FILE.split("\n")[:20])
    assert "\n[lines 1-20 of a.txt, shown above:" in sent(asked(excerpt))[-1]
    assert "\nPlease refer to a.txt in the previous conversation.\n" in sent(asked(FILE))[-1]


def test_a_call_id_that_is_none_names_nothing():
    given = [
        user(),
        call("a.txt"),
        result("a.txt", FILE),
        {"role": "tool", "tool_call_id": ["x"], "content": FILE},
    ]
    assert sent(given)[-1].startswith("Please refer to ")


def test_two_results_of_one_name_are_told_apart():
    other = FILE.replace("square", "power")
    messages = [call("a.txt"), result("a.txt", FILE), call("a.txt"), result("a.txt", other), call("b.txt")]
    assert sent([*messages, result("b.txt", other)])[-1] == (
        "Please refer to a.txt (result 2) in the previous conversation."
    )


def test_parallel_calls_that_return_the_same_file():
    contents = sent([call("a.txt", "b.txt"), result("a.txt", FILE), result("b.txt", FILE, 1)])
    assert contents[1:] == [FILE, "Please refer to a.txt in the previous conversation."]


def test_a_call_with_several_arguments_is_named_in_full():
    asked = call("a.txt")
    asked["tool_calls"][0]["function"]["arguments"] = '{"path": "a.txt", "from": 1}'
    assert sent([asked, result("a.txt", FILE), asked, result("a.txt", FILE)])[-1] == (
        'Please refer to read_file({"path": "a.txt", "from": 1}) in the previous conversation.'
    )


def test_a_call_that_is_too_long_to_repeat_is_named_by_its_function():
    function = {"name": "search", "arguments": json.dumps({"from": "JFK", "query": "x" * 60})}
    calls = [{"id": f"c{n}", "type": "function", "function": function} for n in range(2)]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": FILE} for n in range(2)]
    assistant = {"role": "assistant", "content": None, "tool_calls": calls}
    assert sent([assistant, *results])[-1] == "Please refer to search in the previous conversation."


def test_a_result_whose_call_is_unknown_is_named_by_its_beginning():
    assert sent([{"role": "tool", "content": FILE}, {"role": "tool", "content": FILE}])[-1] == (
        'Please refer to the text that begins "line 1 of the file says that 1 is the" in the previous '
        "conversation."
    )


def log(of):
    return "\n".join(
        f"2026-11-30T12:00:00.000Z INFO com.example.orders.Service {of} {n} was made" for n in range(20)
    )


def test_texts_whose_lines_begin_alike_are_told_apart_by_as_much_as_it_takes():
    results = [{"role": "tool", "content": log(of)} for of in ("order", "refund", "refund")]
    assert sent(results)[-1] == (
        'Please refer to the text that begins "2026-11-30T12:00:00.000Z INFO com.example.orders.Service '
        'refund 0" in the previous conversation.'
    )


def test_texts_that_no_line_tells_apart_are_counted():
    pasted = [{"role": "user", "content": f"{FILE}\n{end}"} for end in ("{}", "[]")]
    *_, again = sent([*pasted, {"role": "tool", "content": f"x\n{FILE}\n[]"}])
    assert again.startswith('x\n[lines 1-401 of number 2 of the texts that begin "line 1 of the file')


def test_what_stands_behind_what_was_left_out_is_called_by_its_own_line():
    results = [FILE, f"{FILE}\n{BLOCKS[1].text}", f"x\n{BLOCKS[1].text}"]
    *_, again = sent([{"role": "tool", "content": text} for text in results])
    assert again.startswith('x\n[lines 2-7 of the text with "Chapter 1, sentence 0')


LICENCE = "# Copyright of the Example Corporation. All rights are reserved, and none is given away."


def licensed(n):
    return f"<document>\n{LICENCE}\n{BLOCKS[n].text}\n</document>"


def test_texts_without_a_name_that_begin_alike_are_told_apart_by_a_line_that_no_other_has():
    first = {"role": "user", "content": "\n".join([licensed(1), licensed(2), "What now?"])}
    last = {"role": "user", "content": "\n".join([licensed(2), "And now?"])}
    _, annotation, *_ = sent([first, answer(), last])[-1].split("\n")
    assert annotation == (
        'Please refer to the text with "Chapter 2, sentence 0: something that is" in the previous '
        "conversation."
    )


def test_a_text_whose_beginning_was_left_out_is_not_called_by_it():
    mixed = f"{BLOCKS[1].text}\nsomething else\n{FILE}"
    results = [{"role": "tool", "content": text} for text in (BLOCKS[1].text, mixed, f"{FILE}\nAll.")]
    *_, second, third = sent(results)
    assert second.startswith('[lines 1-6 of the text that begins "Chapter 1')
    assert third == (
        '[lines 3-402 of the text with "something else", shown above: '
        '"line 1 of the file says that 1 is the"]\nAll.'
    )


def test_texts_that_are_alike_throughout_are_called_by_their_beginning():
    pasted = {"role": "user", "content": FILE}
    assert sent([pasted, pasted, {"role": "tool", "content": FILE}])[-1].startswith(
        '[lines 1-400 of the text that begins "line 1 of the file'
    )


def test_of_several_strings_with_lines_in_one_result_none_has_its_name():
    both = json.dumps({"old": FILE, "path": "src/main.py", "new": BLOCKS[1].text})
    *_, again = sent([call("a", "b"), result("a", both), result("b", json.dumps({"new": BLOCKS[1].text}), 1)])
    assert json.loads(again)["new"] == (
        '[lines 1-6 of the text that begins "Chapter 1, sentence 0: something that is", shown above: '
        '"Chapter 1, sentence 0: something that is"]'
    )


def test_records_of_json_whose_names_begin_alike_are_told_apart():
    def issue(n):
        return {
            "url": f"https://example.org/api/v3/repositories/of-a-long-name/issues/{n}",
            "body": f"What is wrong in case {n}: " + "it goes on and on, as such texts do. " * 9,
        }

    found, again = (json.dumps([issue(n) for n in numbers]) for numbers in (range(8), (20, 3, 21, 7, 22)))
    *_, sent_again = sent([call("a", "b"), result("a", found), result("b", again, 1)])
    annotations = [one for one in json.loads(sent_again) if isinstance(one, str)]
    assert annotations == [f'[1 item of a, shown above: "url: {issue(n)["url"]}"]' for n in (3, 7)]


def test_the_first_lines_of_a_block_are_not_all_of_it():
    excerpt = "\n".join(FILE.split("\n")[:20])
    first = {"role": "user", "content": f"[CB_1] {FILE}\n\n{BLOCKS[2].render()}\n\nWhat now?"}
    last = {"role": "user", "content": f"[CB_9] {excerpt}\n\n{BLOCKS[3].render()}\n\nAnd now?"}
    assert sent([first, answer(), last])[-1].startswith("[CB_9] [lines 1-20 of [CB_1], shown above: ")
    grown = {"role": "user", "content": f"[CB_1] {excerpt}\nAll prices above are doubled.\n\nWhat now?"}
    last = {"role": "user", "content": f"[CB_1] {excerpt}\n\n{BLOCKS[3].render()}\n\nAnd now?"}
    assert sent([grown, answer(), last])[-1].startswith("[CB_1] [lines 1-20 of [CB_1], shown above: ")


def test_a_marker_stays_where_another_block_has_the_text():
    twin = ContextBlock("twin", BLOCKS[1].text)
    content = "\n\n".join([BLOCKS[1].render(), twin.render(), BLOCKS[2].render(), "What does [CB_twin] say?"])
    assert sent([{"role": "user", "content": content}])[0] == content.replace(
        twin.render(), "[CB_twin] Please refer to [CB_1] in the previous conversation."
    )


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        (f"<document>\n{FILE}\n</document>", "a.log", 101),
        (f'<documents>\n<document id="log">\n\n{FILE}\n</document>\n</documents>', 'id "log"', 101),
        (f"<documents>\n<document>\n{FILE}\n</document>\n</documents>", 'the text that begins "line 1', 100),
    ],
    ids=["all of a result", "empty lines below the tag", "no name"],
)
def test_lines_are_counted_as_the_text_shows_them(text, name, line):
    part = "\n".join(FILE.split("\n")[99:150])
    *_, again = sent([call("a.log", "b"), result("a.log", text), result("b", f"New\n{part}\nEnd", 1)])
    assert again.startswith(f"New\n[lines {line}-{line + 50} of {name}")


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("What is the refund policy?", '"What is the refund policy?"'),
        ("src/a b.py", '"src/a b.py"'),
        ("src/a.py", "src/a.py"),
        ("[CB_1]", '"[CB_1]"'),
        ('say "this"', 'read_file({"path": "say \\"this\\""})'),
    ],
)
def test_what_could_be_more_than_a_name_stands_in_quotes(argument, name):
    *_, again = sent([call(argument, argument), result(argument, FILE), result(argument, FILE, 1)])
    assert again == f"Please refer to {name} in the previous conversation."


def test_a_document_that_a_tool_returned_and_the_user_pastes_stays():
    pasted = {"role": "user", "content": f"{BLOCKS[1].text}\n\nThis is my copy. Is it identical?"}
    messages = [call("contract"), result("contract", BLOCKS[1].text), answer(), pasted]
    assert sent(messages, blocks=[BLOCKS[1]])[-1] == pasted["content"]
    # A turn whose context has it is another matter: whoever says so names it once more.
    assert sent(messages, blocks=[BLOCKS[1]] * 2)[-1].startswith("Please refer to contract in")


def test_messages_of_the_openai_package_are_changed_as_mappings_are():
    openai = pytest.importorskip("openai.types.chat")

    class Result(openai.ChatCompletionMessage):
        role: str
        tool_call_id: str

    messages = [
        call("a.txt", "a.txt"),
        *(Result(role="tool", content=FILE, tool_call_id=f"call_a.txt_{n}") for n in range(2)),
    ]
    rewriting = rewrite(messages, pilot=ContextPilot(on_error="raise"))
    assert rewriting.messages[1] is messages[1]
    assert rewriting.messages[2]["content"] == "Please refer to a.txt in the previous conversation."
    assert rewriting.restore()[2]["content"] == FILE


def test_parts_in_a_tuple_stay_in_one():
    parts = ({"type": "text", "text": FILE}, {"type": "text", "text": FILE})
    rewriting = rewrite([{"role": "tool", "content": parts}])
    assert isinstance(rewriting.messages[0]["content"], tuple)
    assert rewriting.restore() == [{"role": "tool", "content": parts}]


def test_what_is_no_pilot_is_refused():
    with pytest.raises(TypeError, match="pilot must be a ContextPilot, not int"):
        rewrite([user(1)], pilot=5)


def test_a_file_in_a_json_string_is_split_at_its_escaped_line_ends():
    changed = FILE.replace("line 200 ", 'line "CC" ')
    *_, again = sent(
        [
            call("a.txt"),
            result("a.txt", json.dumps({"ok": True, "content": FILE + "\n\\no line end\tnor this: \\"})),
            call("a.txt"),
            result("a.txt", json.dumps({"ok": False, "content": changed + "\n\\no line end\tnor this: \\"})),
        ]
    )
    again = json.loads(again)
    assert again["ok"] is False
    assert again["content"].split("\n")[:2] == [
        '[lines 1-199 of a.txt, shown above: "line 1 of the file says that 1 is the"]',
        'line "CC" of the file says that 40000 is the square of 200',
    ]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_known_text_amid_a_json_string_parts_it_and_nothing_comes_twice(indent):
    known = BLOCKS[1]
    first, second = (
        json.dumps({"page": page, "found": f"{before}\n{known.text}\n{FILE}"}, indent=indent)
        for page, before in ((1, BLOCKS[2].text), (2, BLOCKS[3].text))
    )
    messages = [call("a", "b"), result("a", first), result("b", second, 1)]
    _, sent_first, sent_second = sent(messages, blocks=[known])
    assert sent_first == first
    lines = json.loads(sent_second)["found"].split("\n")
    assert lines[:6] == BLOCKS[3].text.split("\n")
    assert lines[6].startswith('Please refer to the text that begins "Chapter 1, sentence 0')
    assert lines[7].startswith('[lines 1-400 of the text that begins "line 1 of the file says that 1 is the"')
    assert len(lines) == 8


def test_lines_behind_a_block_are_not_counted_as_those_of_the_whole_result():
    messages = [call("a"), result("a", f"{BLOCKS[1].text}\n{FILE}"), call("b"), result("b", FILE)]
    assert sent(messages)[-1].startswith("[lines 7-406 of a, shown above")
    assert sent(messages, blocks=[BLOCKS[1]])[-1].startswith("[lines 1-400 of the text that begins")


@pytest.mark.parametrize("lines", [slice(None), slice(1, 3)], ids=["all", "some lines"])
def test_known_lines_of_json_are_no_block_of_it(lines):
    text = json.dumps({"path": "a.txt", "content": FILE, "more": FILE[:999]}, indent=2)
    known = ContextBlock("k", "\n".join(text.split("\n")[lines]))
    messages = [call("a", "b"), result("a", text), result("b", text.replace("a.txt", "b.txt"), 1)]
    first, second = sent(messages, blocks=[known])[1:]
    assert first == sent(messages)[1]
    assert json.loads(second)["path"] == "b.txt"


def flight(number, seats):
    prices = {"basic_economy": 51, "economy": 121, "business": 239}
    times = {"departs": "2024-05-20T06:00:00", "arrives": "2024-05-20T12:00:00"}
    terms = "One bag of 23 kg, and no change of the date on the day of the flight or the day before."
    return {"flight": f"HAT{number}", "seats": seats, **times, "prices": prices, "terms": terms}


def test_json_of_one_line_is_taken_apart_by_its_members_and_stays_json():
    order = {"id": "R1", "passengers": ["Mia Li", "Omar Rossi"], "flights": [flight(1, 5), flight(2, 9)]}
    later = {**order, "status": "cancelled", "flights": [flight(2, 9), flight(1, 4)]}
    read = [call("R1"), result("R1", json.dumps(order)), call("R1"), result("R1", json.dumps(later))]
    *_, again = sent(read)
    again = json.loads(again)
    assert again["status"] == "cancelled"
    assert again["flights"][0] == '[1 item of R1, shown above: "flight: HAT2"]'
    assert again["flights"][1]["seats"] == 4
    short = {"id": "R1", "passengers": ["Mia Li", "Omar Rossi"]}  # Not worth an annotation.
    assert again.items() >= short.items()


def test_members_side_by_side_are_left_out_together():
    rows = [flight(number, 5) for number in range(6)]
    found = {"page": 1, "rows": rows, "total": 6, "next": None}
    first, changed = json.dumps(found), json.dumps({**found, "page": 2})
    *_, again = sent([call("x"), result("x", first), call("x"), result("x", changed)])
    assert json.loads(again) == {"page": 2, "...": '[3 items of x, shown above: "rows"]'}
    *_, again = sent([call("x"), result("x", first), call("x"), result("x", json.dumps(rows[2:]))])
    assert json.loads(again) == ['[4 items of x, shown above: "flight: HAT2"]']


def test_half_of_a_surrogate_pair_is_quoted_as_it_is_written():
    strings = [json.dumps({"text": f"\ud83d cut\n{FILE[:length]}"}) for length in (2000, 1900)]
    rows = [{**flight(number, 5), "flight": f"\ud83d HAT{number}"} for number in range(6)]
    for before, after in (strings, [json.dumps(rows), json.dumps(rows[2:])]):
        *_, again = sent([call("x"), result("x", before), call("x"), result("x", after)])
        assert len(again.encode()) < len(after) / 2
        assert "ud83d" in again


def test_rows_that_begin_alike_stay():
    rows = [flight(1, seats) for seats in range(4)]
    *_, again = sent([call("x"), result("x", json.dumps(rows)), call("y"), result("y", json.dumps(rows[2:]))])
    assert json.loads(again) == rows[2:]  # "flight: HAT1" would not tell which.


def test_a_row_is_left_out_whole_or_not_at_all():
    rows = [flight(number, 5) for number in range(4)]
    assert sent([call("x"), result("x", json.dumps(rows))])[1:] == [json.dumps(rows)]


def test_a_member_is_not_taken_for_a_line():
    member = json.dumps("words that are worth an annotation " * 10)
    texts = [f"A file\n{member}\nits end", f"[1, {member}]"]
    assert sent([call("x", "y"), result("x", texts[0]), result("y", texts[1], 1)])[1:] == texts


def test_json_in_another_style_stays():
    row = [flight(1, 5)]
    texts = [json.dumps({"rows": row}), json.dumps(row, separators=(",", ":")), json.dumps(row, indent=1)]
    assert sent([call("x"), *(result("x", text) for text in texts)])[1:] == texts


def test_json_that_lost_lines_is_no_whole_to_point_at():
    text = "\n".join(FILE.split("\n")[:9])
    pretty, compact = (json.dumps({"path": "a", "content": text}, indent=indent) for indent in (2, None))
    messages = [call("a"), result("a", pretty), call("a", "a"), result("a", compact), result("a", compact, 1)]
    rewriting = rewrite(messages)
    assert rewriting.messages[3]["content"] == rewriting.messages[4]["content"] != compact
    assert rewrite(rewriting.messages).edits == ()


def test_line_numbers_in_front_of_every_line():
    numbered = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(FILE.split("\n"), 1))
    moved = "\n".join(f"{n:6}\t{line}" for n, line in enumerate(FILE.split("\n"), 2))
    messages = [call("a.txt"), result("a.txt", numbered), call("b.txt"), result("b.txt", moved)]
    assert sent(messages) == [message["content"] for message in messages]
    assert sent([*messages[:3], result("b.txt", numbered)])[-1].startswith("Please refer to a.txt")


def test_rows_that_differ_in_a_number_stay():
    rows = "\n".join(
        f"| {n} | order of a blue widget | 12.50 | in stock, ships in two days |" for n in range(99)
    )
    other = rows.replace("12.50", "12.51")
    messages = [call("a.csv"), result("a.csv", rows), call("b.csv"), result("b.csv", other)]
    assert sent(messages) == [message["content"] for message in messages]


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    "line",
    [
        "def f{}(self, value={{}}):\n        return '%s' % (value or {{{}}})\n",
        "第{}章：天気は晴れ、風は弱く、気温は二十度であった。そのことを皆が喜んだ。{}",
        "TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdCBvbmx5{}IGJ5IGhpcyByZWFzb24sIGJ1dCBieSB0aGlz{}",
        '{{"id": {}, "name": "row {}", "text": "She said \\"no\\" and left."}}',
    ],
    ids=["code", "Japanese", "base64", "JSON lines"],
)
def test_any_kind_of_text_is_left_out_and_comes_back(line, line_end):
    text = line_end.join(line.format(n, n) for n in range(60))
    changed = text.replace("30", "XX", 1)
    *_, again = sent([call("a"), result("a", text), call("b"), result("b", changed)])
    assert len(again) < len(text) / 3
    assert "XX" in again


def test_a_users_own_words_stay_even_where_they_are_a_document():
    asked = {"role": "user", "content": f"Is this identical to the file?\n\n{FILE}"}
    assert sent([call("a.txt"), result("a.txt", FILE), asked])[-1] == asked["content"]
    # They are a place to point at, though.
    *_, again = sent([asked, call("a.txt"), result("a.txt", FILE)])
    assert again.startswith('[lines 3-402 of the text that begins "Is this identical to the file?"')


def test_system_and_assistant_texts_are_pointed_at_but_stay():
    messages = [system(FILE), answer(FILE), system(FILE), call("a.txt"), result("a.txt", FILE)]
    contents = sent(messages)
    assert contents[:4] == [FILE, FILE, FILE, None]
    assert contents[4].startswith("[lines 1-400 of the text that begins")


def test_what_looks_like_an_annotation_is_not_taken_for_one():
    fake = "Please refer to [CB_1] in the previous conversation."
    text = "\n".join([fake, FILE, fake])
    messages = [call("a.txt"), result("a.txt", text), call("b.txt"), result("b.txt", text)]
    rewriting = rewrite(messages)
    assert rewriting.messages[3]["content"].split("\n")[0] == fake
    assert rewriting.restore() == messages
    assert rewrite(rewriting.messages).edits == ()


def test_a_short_passage_is_not_worth_an_annotation():
    messages = [call("a"), result("a", "A line that says little.\nAnother."), call("b")]
    messages.append(result("b", "A line that says little.\nAnother one."))
    assert sent(messages) == [message["content"] for message in messages]


def test_passages_are_left_out_of_another_block_too():
    license = "\n".join(f"Clause {n}: this is granted to everyone, for ever and a day." for n in range(9))
    blocks = [ContextBlock(n, f"Product {n}\n{license}\nEnd of product {n}") for n in (1, 2)]
    text = "\n\n".join([*(block.render() for block in blocks), "Which?"])
    assert sent([{"role": "user", "content": text}], blocks=blocks)[0] == (
        f"{blocks[0].render()}\n\n[CB_2] Product 2\n"
        '[lines 2-10 of [CB_1], shown above: "Clause 0: this is granted to everyone,"]\n'
        "End of product 2\n\nWhich?"
    )


def json_array(texts, question):
    rows = json.dumps([{"id": name, "text": text} for name, text in texts.items()])
    return {"role": "user", "content": f"{rows}\n\n{question}"}


def test_blocks_of_different_lengths_are_aligned_in_json():
    texts = {
        "a": "short\n" * 3,
        "b": 'A "quoted" and much longer text.\n' * 9,
        "c": "of middling length\n" * 5,
    }
    pilot = ContextPilot(on_error="raise")
    rewrite([json_array(texts, "One?")], pilot=pilot)
    messages = [json_array({name: texts[name] for name in "bac"}, "Two?")]
    rewriting = rewrite(messages, pilot=pilot)
    annotation = ORDER_TEMPLATE.replace("{order}", 'id "b" > id "a" > id "c"')
    assert rewriting.messages == [json_array(texts, f"{annotation}\n\nTwo?")]
    assert rewriting.restore() == messages


def test_what_was_aligned_is_recognised_as_what_was_not():
    pilot = ContextPilot(on_error="raise")
    known = [*BLOCKS.values()]
    rewrite([user(1, 2, 3, question="Who?")], pilot=pilot, blocks=known)
    long = ContextBlock("long", "\n".join(f"A much longer text, line {n}." for n in range(40)))
    text = "\n\n".join([*(block.render() for block in (BLOCKS[3], long, BLOCKS[1])), "Why?"])
    first = [{"role": "user", "content": text}]
    aligned = rewrite(first, pilot=pilot, blocks=[*known, long])
    assert aligned.edits[0].kind is EditKind.ALIGNMENT
    second = rewrite([*first, answer(), user(1, 3)], pilot=pilot).messages[2]["content"]
    assert second.split("\n\n")[0] == "Please refer to [CB_1] in the previous conversation."
    assert second.split("\n\n")[1] == "Please refer to [CB_3] in the previous conversation."


@pytest.mark.parametrize("marked", ["[{}] {}", "[CB_{}] {}"], ids=["numbered", "rendered"])
def test_a_name_that_two_texts_had_is_not_used(marked):
    def message(*blocks):
        texts = [marked.format(place, BLOCKS[n].text) for place, n in enumerate(blocks, 1)]
        return {"role": "user", "content": "\n\n".join([*texts, "What now?"])}

    *_, second = sent([message(1, 2), answer(), message(3, 1, 2)])
    assert 'Please refer to the text that begins "Chapter 1, sentence 0: something that is" in' in second
    assert "refer to [" not in second


def test_a_block_in_a_result_is_not_called_as_the_whole_result():
    def results(*blocks):
        return json.dumps([{"text": BLOCKS[n].text} for n in blocks])

    messages = [call("bikes"), result("bikes", results(1, 2)), call("boats"), result("boats", results(3, 2))]
    *_, second = sent(messages)
    assert json.loads(second)[1]["text"] == (
        'Please refer to the text that begins "Chapter 2, sentence 0: something that is" in the previous '
        "conversation."
    )


def test_a_known_text_that_the_user_pastes_again_stays():
    pasted = f"Is this, which my lawyer sent me, identical?\n\n{BLOCKS[1].text}"
    *_, second = sent([user(1), answer(), user(1, question=pasted)], blocks=[BLOCKS[1]])
    assert second == f"Please refer to [CB_1] in the previous conversation.\n\n{pasted}"


def test_a_picture_between_two_texts_keeps_its_place():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    parts = [{"type": "text", "text": BLOCKS[1].text}, picture, {"type": "text", "text": BLOCKS[2].text}]
    messages = [call("a"), result("a", BLOCKS[1].text), {"role": "user", "content": parts}]
    assert sent(messages)[-1] == parts
    messages = [call("a"), {"role": "tool", "tool_call_id": "call_a_0", "content": parts}]
    messages += [call("b"), {"role": "tool", "tool_call_id": "call_b_0", "content": parts}]
    *_, again = sent(messages)
    assert [part["type"] for part in again] == ["text", "image_url", "text"]
    assert again[1] is picture
    assert again[0]["text"] == "Please refer to a in the previous conversation."


def test_one_block_per_content_part():
    pilot = ContextPilot(on_error="raise")

    def parts(*blocks, question):
        return {
            "role": "user",
            "content": [{"type": "text", "text": t} for t in [*(BLOCKS[n].text for n in blocks), question]],
        }

    rewrite([parts(1, 2, question="Who?")], pilot=pilot)
    first = [parts(2, 3, 1, question="Why?")]
    aligned = rewrite(first, pilot=pilot)
    assert [part["text"] for part in aligned.messages[0]["content"]] == [
        BLOCKS[1].text,
        BLOCKS[2].text,
        BLOCKS[3].text,
        ORDER_TEMPLATE.replace(
            "{order}", " > ".join(f'"Chapter {n}, sentence 0: something that is"' for n in (2, 3, 1))
        )
        + "\n\nWhy?",
    ]
    assert aligned.restore() == first


def test_empty_things():
    assert rewrite([]).messages == []
    messages = [
        user(question=""),
        {"role": "assistant"},
        {"role": "tool", "content": ""},
        {"role": "user", "content": []},
    ]
    assert rewrite(messages, blocks=[]).messages == messages


def test_an_answer_of_the_openai_package_may_stand_in_the_history():
    chat = pytest.importorskip("openai.types.chat")
    said = chat.ChatCompletionMessage.model_validate(call("a.txt") | {"content": "Let me look."})
    rewriting = rewrite([user(), said, result("a.txt", FILE), said, result("a.txt", FILE)])
    assert rewriting.messages[1] is said
    assert rewriting.messages[4]["content"] == "Please refer to a.txt in the previous conversation."


def test_tenants_do_not_share_what_is_remembered():
    pilot = ContextPilot(on_error="raise")
    a, b = Namespace(tenant="a"), Namespace(tenant="b")
    rewrite([user(1, 2, 3)], pilot=pilot, namespace=a, blocks=BLOCKS.values())
    rewrite([user(3, 2, 1)], pilot=pilot, namespace=a, blocks=BLOCKS.values())
    mine = rewrite([user(3, 2, 1)], pilot=pilot, namespace=b, blocks=BLOCKS.values())
    assert mine.messages == [user(3, 2, 1)]


def test_an_error_inside_sends_the_original(caplog):
    def broken(text):
        raise RuntimeError("secret text")

    pilot = ContextPilot(token_counter=broken)
    messages = [call("a.txt"), result("a.txt", FILE), call("b.txt"), result("b.txt", FILE)]
    assert rewrite(messages, pilot=pilot).messages == messages
    assert "rewriting failed with RuntimeError" in caplog.text
    assert "secret" not in caplog.text
    assert pilot.outcomes[Outcome.FAILED] == 1
    with pytest.raises(RuntimeError):
        rewrite(messages, pilot=ContextPilot(token_counter=broken, on_error="raise"))


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match=r"messages\[1\] must be a mapping with role and content, not str"):
        rewrite([user(), "hello"])
    with pytest.raises(TypeError, match="blocks must be ContextBlock objects, not str"):
        rewrite([user()], blocks=["text"])


def test_memory_is_bounded_whatever_the_lines_are():
    pilot = ContextPilot(on_error="raise", conversation_bytes=2_000_000)
    rewrite([user(1)], pilot=pilot)
    tracemalloc.start()
    for text in ("\n" * 3_000, "hi", "{}\n" * 3_000, FILE):
        for n in range(300 if len(text) < 9 else 9):
            rewrite([{"role": "user", "content": f"{n}{text}"}], pilot=pilot)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3_000_000


def test_threads_share_a_pilot():
    pilot = ContextPilot(on_error="raise", conversation_bytes=100_000)
    conversations = [
        [
            system("Be brief."),
            user(1, 2),
            answer(str(n)),
            call("a.txt"),
            result("a.txt", FILE),
            user(2, 1),
            answer(),
            user(1),
        ]
        for n in range(8)
    ]
    expected = [rewrite(messages, blocks=BLOCKS.values()).messages for messages in conversations]

    def run(n):
        messages = conversations[n % len(conversations)]
        for end in range(1, len(messages) + 1):
            now = rewrite(messages[:end], pilot=pilot, blocks=BLOCKS.values())
            assert now.restore() == messages[:end]
        return now.messages

    with ThreadPoolExecutor(8) as workers:
        for n, messages in enumerate(workers.map(run, range(64))):
            assert messages[1:5] == expected[n % len(conversations)][1:5]
