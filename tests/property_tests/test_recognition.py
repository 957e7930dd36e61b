"""What recognition promises, on whatever Hypothesis can think of."""

import json
import random

from hypothesis import assume, given
from hypothesis import strategies as st

from contextpilot_integrations import ContextBlock
from contextpilot_integrations.annotation import order_annotation
from contextpilot_integrations.recognition import Form, Texts, escape, find_blocks, unescape

FRAGMENTS = [
    "[CB_a] ",
    "[CB_b]",
    "\n\n[CB_c] ",
    "\r\n\r\n[CB_d] ",
    "\n",
    "\n\n",
    "\r\n",
    " ",
    "<document>",
    '<document id="x">',
    "<document title='a > b'",
    "</document>",
    "<documents>\n",
    "</documents>",
    "<source>a.txt</source>",
    "<document_content>",
    "</document_content>",
    "\n[",
    "]",
    '{"text": "',
    '"}',
    '", "id": 7}',
    ",",
    ":",
    '"',
    "\\",
    "\\n",
    "\\ud83d",
    "{",
    "}",
    '{"results": [{"content": "a"}]}',
    "\n[1] ",
    "\n[2] ",
    "\nDocument 1: ",
    "\nDocument 2: ",
    "long enough " * 15,
    "\n```\n",
    "known text",
    "known\r\ntext",
    "Please read the context in the following priority order: [CB_a] > [CB_b] and",
    "%s {order} {",
    "契約書 😀 עברית",
    "\ud800",
    "\x00\u2028\ufeff",
]
any_text = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=25).map("".join)
known_texts = st.lists(st.sampled_from(["known text", "known\r\ntext", "", " \n", "}"]), max_size=3)

# Whatever may be in a block's text, but for what is a form itself.
characters = st.sampled_from(list("ab7 \n\r\t\"'\\/&%{}[],:é契😀\u200f\ud800\x00\u2028")) | st.characters()
plain_texts = st.text(characters, max_size=30).filter(lambda text: "document" not in text)
labels = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True)
own_words = st.sampled_from(["", "What does it say?", "Explain:\n\n- a\n- b", "\n", "  \n\n%s {x}"])


@st.composite
def rendered(draw):
    """A text of one to five rendered blocks, and its blocks."""
    blocks = draw(st.lists(st.builds(ContextBlock, labels, plain_texts), min_size=1, max_size=5))
    return "\n\n".join(block.render() for block in blocks), blocks


def texts_of(text, groups):
    return [found.text_in(text) for group in groups for found in group.found]


def check_groups(text, groups):
    end = 0
    for group in groups:
        assert group.found
        for found in group.found:
            assert end <= found.start <= found.text_start <= found.text_end <= found.end <= len(text)
            assert found.start < found.end
            end = found.end
            found.text_in(text)


def check_permutations(text, groups, again):
    """Each movable group, in another order, is found again with the same blocks in that order."""
    for place, group in enumerate(groups):
        order = list(range(len(group.found)))
        first, last = group.found[0], group.found[-1]
        assert group.reordered(text, order) == text[first.start : last.end]
        if not group.movable:
            continue
        random.Random(len(text)).shuffle(order)
        moved = text[: first.start] + group.reordered(text, order) + text[last.end :]
        found = again(moved)[place]
        slices = [text[there.start : there.end] for there in group.found]
        assert [moved[there.start : there.end] for there in found.found] == [slices[i] for i in order]
        assert [there.name for there in found.found] == [group.found[i].name for i in order]
        assert found.movable


@given(any_text, known_texts, any_text, st.booleans())
def test_no_text_is_too_strange(text, known, earlier, is_data):
    shown = Texts()
    shown.add_shown(earlier, find_blocks(earlier, whole_text_is_data=True))
    check_groups(text, find_blocks(text, known=known, shown=shown, whole_text_is_data=is_data))


@given(st.text())
def test_text_without_a_form_holds_no_blocks(text):
    assume(not any(start in text for start in ("[CB_", "<document", '"text"', '"content"')))
    assert find_blocks(text) == ()


@given(any_text, st.booleans())
def test_what_moves_is_found_again(text, is_data):
    def again(moved):
        return find_blocks(moved, whole_text_is_data=is_data)

    check_permutations(text, again(text), again)


@given(rendered(), own_words)
def test_rendered_blocks_before_own_words(case, words):
    text, blocks = case
    assume(blocks[-1].text != "")
    prompt = f"Context:\n{text}\n\n{words}"
    groups = find_blocks(prompt)
    assert texts_of(prompt, groups) == [block.text for block in blocks[:-1]]
    check_permutations(prompt, groups, find_blocks)


@given(rendered(), own_words, st.sampled_from(["\n\n", "\n", "\r\n"]))
def test_rendered_blocks_with_known_texts(case, words, between):
    text, blocks = case
    known = [block.text for block in blocks if block.text.strip()]
    assume(len(known) == len(blocks))
    # A text that begins another, at the end of a line, cannot be told from it.
    assume(not any(a != b and b.startswith(a) for a in known for b in known))
    prompt = f"{text}{between}{words}"

    def again(moved):
        return find_blocks(moved, known=known)

    groups = again(prompt)
    assert texts_of(prompt, groups) == [block.text for block in blocks]
    check_permutations(prompt, groups, again)


@given(rendered(), own_words)
def test_rendered_blocks_before_an_order_annotation(case, words):
    text, blocks = case
    assume(len(blocks) > 1)
    prompt = f"{text}\n\n{order_annotation(blocks[::-1])}\n\n{words}"
    groups = find_blocks(prompt)
    assert len(groups) == 1
    assert texts_of(prompt, groups) == [block.text for block in blocks]
    assert [found.name for found in groups[0].found] == [f"[CB_{block.label}]" for block in blocks]
    check_permutations(prompt, groups, find_blocks)


@given(rendered(), own_words)
def test_the_last_block_is_found_if_an_earlier_message_showed_it(case, words):
    text, blocks = case
    assume(blocks[-1].text.strip())
    earlier = f"{text}\n\n[CB_end] "
    shown = Texts()
    shown.add_shown(earlier, find_blocks(earlier))
    prompt = f"{blocks[-1].render()}\n\n{words}"
    assert texts_of(prompt, find_blocks(prompt)) == []
    found = texts_of(prompt, find_blocks(prompt, shown=shown))
    assert len(found) == 1
    assert found[0].startswith(blocks[-1].text) or blocks[-1].text.startswith(found[0])


@given(st.lists(plain_texts, min_size=1, max_size=5), own_words, st.sampled_from(["\n", "", "\r\n\n"]))
def test_xml_documents(texts, words, between):
    elements = [f'<document id="{place}">\n{text}\n</document>' for place, text in enumerate(texts)]
    assume(not any("<" in text for text in texts))
    prompt = f"<documents>{between}{between.join(elements)}\n</documents>\n{words}"
    groups = find_blocks(prompt)
    assert len(groups) == 1
    assert [found.name for found in groups[0].found] == [f'id "{place}"' for place in range(len(texts))]
    for text, found in zip(texts, groups[0].found, strict=True):
        assert found.text_in(prompt).strip(" \t\r\n") == text.strip(" \t\r\n")
    check_permutations(prompt, groups, find_blocks)


# Whatever a text may say of the tags, but for an end at the end of a line, which looks like a real one.
about_tags = st.sampled_from(
    [
        "it ends with </document> then",
        "it begins with <document> then",
        "such as <document>this</document> one",
        "</document> it says",
        "<document>",
        "<documents>",
        '[{"text": "a"}, {"text": "b"}]',
        "plain",
    ]
)
texts_about_tags = st.lists(about_tags, max_size=3).map("\n".join)


@given(
    st.lists(texts_about_tags, min_size=1, max_size=5),
    st.lists(about_tags, max_size=2),
    st.sampled_from(["", "\n"]),
)
def test_no_document_is_torn_apart_whatever_its_text_says(texts, words, line_end):
    documents = [f"<document>{line_end}{text}{line_end}</document>" for text in texts]
    prompt = "\n".join([*documents, *words])
    for group in find_blocks(prompt):
        order = list(range(len(group.found)))
        if group.movable:
            random.Random(len(prompt)).shuffle(order)
        start, end = group.found[0].start, group.found[-1].end
        moved = prompt[:start] + group.reordered(prompt, order) + prompt[end:]
        assert sorted(prompt) == sorted(moved)
        assert all(moved.count(document) >= documents.count(document) for document in documents)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(characters, max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(
    st.lists(st.text(characters, max_size=30), min_size=1, max_size=5),
    st.sampled_from(["text", "content", "page_content", "snippet"]),
    json_values,
    st.sampled_from([None, 1]),
    st.booleans(),
    st.booleans(),
)
def test_json_arrays(texts, field, other, indent, ensure_ascii, inside):
    array = [{"id": place, "other": other, field: text} for place, text in enumerate(texts)]
    written = json.dumps(
        {"n": len(texts), "results": array} if inside else array, indent=indent, ensure_ascii=ensure_ascii
    )
    groups = find_blocks(written)
    assert len(groups) == 1
    assert texts_of(written, groups) == texts
    for item, found in zip(array, groups[0].found, strict=True):
        assert json.loads(written[found.start : found.end]) == item
        assert found.name == f"id {item['id']}"
    check_permutations(written, groups, find_blocks)
    order = list(range(len(texts)))[::-1]
    first, last = groups[0].found[0].start, groups[0].found[-1].end
    moved = json.loads(written[:first] + groups[0].reordered(written, order) + written[last:])
    assert (moved["results"] if inside else moved) == array[::-1]


@given(
    st.text(characters, min_size=1, max_size=30).filter(lambda text: text.strip()),
    st.text(characters, max_size=20),
    st.text(characters, max_size=20),
    st.booleans(),
)
def test_known_texts_in_json_strings(known, before, after, ensure_ascii):
    whole = f"{before}\n{known}\n{after}"
    text = json.dumps({"output": whole, "exit": 0}, ensure_ascii=ensure_ascii)
    found = texts_of(text, find_blocks(text, known=[known]))
    assert known in found
    assert set(found) == {known}


SOME_TEXTS = ["alpha", "beta\n\ngamma", "契約\r\n😀", '{"a": [1]}']


@given(st.lists(st.sampled_from(SOME_TEXTS), max_size=4, unique=True))
def test_known_texts_where_they_stand(texts):
    prompt = "Compare these:\n" + "\n\n".join(texts) + "\n\nalphabet, or is alpha it?"

    def again(moved):
        return find_blocks(moved, known=texts)

    groups = again(prompt)
    assert texts_of(prompt, groups) == texts
    assert all(group.form is Form.KNOWN for group in groups)
    check_permutations(prompt, groups, again)


@given(st.text(characters))
def test_json_escapes_come_back(text):
    assert unescape(escape(text)) == text
    assert unescape(json.dumps(text)[1:-1]) == text
