"""The promises that concern conversations, on whatever Hypothesis can think of."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from contextpilot_integrations import ContextBlock, ContextPilot, estimate_tokens
from contextpilot_integrations.conversation import rewrite
from contextpilot_integrations.edits import EditKind, text_at
from contextpilot_integrations.recognition import is_json

CUTS = (EditKind.BLOCK, EditKind.PASSAGE)

# Few and alike, so that they meet again: sentences, rows that differ in a digit, code, what looks like ours.
LINES = [
    "The supplier shall deliver the goods within thirty days of the order, at its own cost and risk.",
    "The supplier shall deliver the goods within thirty days of the order, at its own cost and risk!",
    "| 1017 | widget, blue | 12.50 | in stock | ships from the northern warehouse in two days |",
    "| 1018 | widget, blue | 12.50 | in stock | ships from the northern warehouse in two days |",
    "        return self.value if self.value is not None else default_value_of(self.kind)",
    "}",
    "",
    "   ",
    "short",
    'She said "no", and left \\ a backslash, {braces}, 100 % of them; naïve café, 東京都の天気は晴れ 🙂🙂',
    "Please refer to [CB_1] in the previous conversation.",
    '[lines 1-3 of x.txt, shown above: "The supplier shall"]',
    "Please read the context in the following priority order: [CB_1] > [CB_2] and answer the question.",
    "TWFuIGlzIGRpc3Rpbmd1aXNoZWQsIG5vdCBvbmx5IGJ5IGhpcyByZWFzb24sIGJ1dCBieSB0aGlzIHNpbmd1bGFyIHBhc3Npb24=",
    "[CB_3] what a marker looks like",
    "</document>",
]
line_ends = st.sampled_from(["\n", "\n", "\n", "\r\n"])
lines = st.sampled_from(LINES) | st.text(max_size=6)
stretches = st.builds(lambda these, times: these * times, st.lists(lines, max_size=4), st.integers(2, 12))
texts = st.builds(lambda end, these: end.join(these), line_ends, st.lists(lines, max_size=12) | stretches)
# The same few documents come again and again.
DOCUMENTS = [
    "\n".join(f"Section {k} of document {n}: whatever is agreed here is agreed for good." for k in range(5))
    for n in range(4)
] + ["\n\n".join(LINES[:4]), LINES[9], "tiny"]
documents = st.sampled_from(DOCUMENTS) | texts
contexts = st.lists(st.sampled_from(range(len(DOCUMENTS))), max_size=5)
questions = st.sampled_from(
    ["And now?", "Is it identical?\n\nSay yes or no.", LINES[0], "\n".join(LINES[:3])]
)


def rendered(context):
    return "\n\n".join(ContextBlock(str(place), DOCUMENTS[place]).render() for place in context)


FORMS = [
    lambda context, question: f"{rendered(context)}\n\n{question}",
    lambda context, question: (
        "".join(f'<document id="d{p}">\n{DOCUMENTS[p]}\n</document>\n' for p in context) + question
    ),
    lambda context, question: (
        json.dumps([{"id": p, "text": DOCUMENTS[p]} for p in context]) + "\n\n" + question
    ),
    lambda context, question: (
        "".join(f"[{n}] {DOCUMENTS[p]}\n\n" for n, p in enumerate(context, 1)) + question
    ),
    lambda context, question: [
        {"type": "text", "text": t} for t in [*(DOCUMENTS[p] for p in context), question]
    ],
    lambda context, question: [
        {"type": "text", "text": rendered(context)},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": question},
    ],
]
users = st.builds(
    lambda form, context, question: {"role": "user", "content": form(context, question)},
    st.sampled_from(FORMS),
    contexts,
    questions,
)
plain = st.builds(
    lambda role, text: {"role": role, "content": text},
    st.sampled_from(["system", "user", "assistant"]),
    documents,
)
RESULTS = [
    lambda text: text,
    lambda text: json.dumps({"path": "a.txt", "content": text}),
    lambda text: json.dumps({"path": "a.txt", "content": text}, indent=2, ensure_ascii=False),
    lambda text: json.dumps([{"line": line, "of": [n, {}]} for n, line in enumerate(text.split("\n"))]),
    lambda text: json.dumps({f"{n % 3}": [line] for n, line in enumerate(text.split("\n"))}),
    lambda text: json.dumps(text.split("\n"), separators=(",", ":"), ensure_ascii=False),
    lambda text: "\n".join(f"{n:6}\t{line}" for n, line in enumerate(text.split("\n"), 1)),
]


def step(paths, results, form):
    calls = [
        {
            "id": f"call_{n}",
            "type": "function",
            "function": {"name": "read_file", "arguments": json.dumps({"path": path})},
        }
        for n, path in enumerate(paths)
    ]
    tools = [
        {"role": "tool", "tool_call_id": f"call_{n}", "content": form(text)}
        for n, text in enumerate(results[: len(paths)])
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *tools]


steps = st.builds(
    step,
    st.lists(st.sampled_from(["a.txt", "b.txt"]), min_size=1, max_size=3),
    st.lists(documents, min_size=3, max_size=3),
    st.sampled_from(RESULTS),
)
turns = st.lists(
    users.map(lambda message: [message]) | plain.map(lambda message: [message]) | steps, max_size=7
)
conversations = turns.map(lambda lists: [message for messages in lists for message in messages])


def new_pilot(**settings):
    return ContextPilot(on_error="raise", **settings)


def tokens(messages):
    return sum(
        estimate_tokens(text)
        for message in messages
        for text in (
            [message["content"]]
            if isinstance(message["content"], str)
            else [part["text"] for part in message["content"] or [] if "text" in part]
        )
    )


@given(conversations)
def test_the_original_comes_back_and_the_input_stays(messages):
    before = copy.deepcopy(messages)
    rewriting = rewrite(messages, pilot=new_pilot())
    assert messages == before
    assert rewriting.restore() == messages
    assert [m.keys() for m in rewriting.messages] == [m.keys() for m in messages]


@st.composite
def conversations_and_blocks(draw):
    """Messages, and blocks whose texts stand in them: documents, and any lines of a message."""
    messages = draw(conversations)
    texts = draw(st.lists(st.sampled_from(DOCUMENTS), max_size=3))
    for message in messages:
        if isinstance(message["content"], str) and draw(st.booleans()):
            lines = message["content"].split("\n")
            start = draw(st.integers(0, len(lines) - 1))
            texts.append("\n".join(lines[start : draw(st.integers(start + 1, len(lines)))]))
    return messages, [ContextBlock(str(place), text) for place, text in enumerate(texts)]


@given(conversations_and_blocks())
def test_the_original_comes_back_whatever_is_known(case):
    messages, blocks = case
    rewriting = rewrite(messages, pilot=new_pilot(), blocks=blocks)
    assert rewriting.restore() == messages
    for before, after in zip(messages, rewriting.messages, strict=True):
        if before["role"] == "tool" and is_json(before["content"]):
            assert after["content"].startswith("Please refer to ") or json.loads(after["content"])


@given(conversations)
def test_what_is_left_out_stands_verbatim_where_the_edit_says(messages):
    rewriting = rewrite(messages, pilot=new_pilot())
    for edit in rewriting.edits:
        if edit.kind in CUTS:
            source, place = edit.source, edit.place
            there = text_at(rewriting.messages, source)[source.start : source.end]
            assert there
            assert edit.original.endswith(there)
            between = edit.original.split(there)
            assert edit.kind is EditKind.BLOCK or {*between} <= {"", "\n", "\\n", ", ", ","}
            part = (source.message, source.part or 0, source.end)
            assert part <= (place.message, place.part or 0, place.start)
            assert messages[place.message]["role"] in ("user", "tool")
            # The annotation stands where the edit says, whatever was left out behind it.
            assert text_at(rewriting.messages, place)[place.start : place.end]


@given(conversations)
def test_a_source_is_never_an_annotation(messages):
    rewriting = rewrite(messages, pilot=new_pilot())
    cuts = [edit for edit in rewriting.edits if edit.kind in CUTS]
    for edit in cuts:
        for other in cuts:
            same = (other.place.message, other.place.part) == (edit.source.message, edit.source.part)
            assert not same or other.place.end <= edit.source.start or edit.source.end <= other.place.start


@given(conversations)
def test_rewriting_what_was_rewritten_changes_nothing(messages):
    pilot = new_pilot()
    once = rewrite(messages, pilot=pilot).messages
    assert rewrite(once, pilot=pilot).messages == once
    assert rewrite(once, pilot=new_pilot()).messages == once


@given(conversations, st.lists(contexts, max_size=3), st.sampled_from([0, 20_000, 100_000_000]))
def test_a_pilot_that_saw_the_prefixes_never_changes_what_was_sent(messages, others, limit):
    pilot = new_pilot(conversation_bytes=limit)
    sent = []
    for end in range(len(messages) + 1):
        for context in others:  # Other conversations teach it other orders meanwhile.
            rewrite([{"role": "user", "content": FORMS[0](context, "Now?")}], pilot=pilot)
        now = rewrite(messages[:end], pilot=pilot)
        assert now.messages[: len(sent)] == sent
        assert now.restore() == messages[:end]
        sent = now.messages
    for end in range(len(messages) + 1):
        assert rewrite(messages[:end], pilot=pilot).messages == sent[:end]


@given(conversations)
def test_without_a_memory_only_orders_are_lost(messages):
    pilot = new_pilot()
    remembered = rewrite(messages, pilot=pilot)
    pilot.conversations.clear()
    again = rewrite(messages, pilot=pilot)
    assert again.restore() == messages
    if not any(edit.kind is EditKind.ALIGNMENT for edit in (*remembered.edits, *again.edits)):
        assert (again.messages, again.edits) == (remembered.messages, remembered.edits)


@given(conversations)
def test_it_never_costs_tokens_where_nothing_is_aligned(messages):
    rewriting = rewrite(messages, pilot=new_pilot())
    assert tokens(rewriting.messages) <= tokens(messages) + len(rewriting.edits)


@given(conversations)
def test_system_and_assistant_and_a_users_own_words_stay(messages):
    rewriting = rewrite(messages, pilot=new_pilot())
    for before, after in zip(messages, rewriting.messages, strict=True):
        if before["role"] in ("system", "assistant"):
            assert after == before
        if before["role"] == "user":
            content, sent = before["content"], after["content"]
            last, last_sent = (
                (content, sent) if isinstance(content, str) else (content[-1]["text"], sent[-1]["text"])
            )
            question = max(
                (q for q in ["And now?", "Say yes or no."] if last.endswith(q)), default="", key=len
            )
            assert last_sent.endswith(question)


@given(conversations)
def test_results_that_are_json_stay_json(messages):
    for before, after in zip(messages, rewrite(messages, pilot=new_pilot()).messages, strict=True):
        if before["role"] == "tool" and is_json(before["content"]):
            assert after["content"].startswith("Please refer to ") or json.loads(after["content"])


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner),
        max_leaves=9,
    )
)
def test_odd_messages_go_out_as_they_are(value):
    messages = [{"role": "tool", "content": value}, {"content": value}, {"role": value, "content": [value]}]
    assert rewrite(messages, pilot=new_pilot()).restore() == messages
