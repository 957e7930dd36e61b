"""Messages on their way to a rewriting and back."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from contextpilot_integrations.langchain.messages import message_texts, to_openai, with_content

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}}
TEXT = st.text(max_size=40)
PART = st.one_of(
    TEXT,
    st.builds(lambda text: {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}, TEXT),
    st.just(IMAGE),
    st.just({"type": "reasoning", "id": "r"}),
)
CONTENT = TEXT | st.lists(PART, max_size=4)
COMMON = {"id": st.none() | st.text(max_size=5), "additional_kwargs": st.just({"cached": [1]})}
MESSAGE = st.one_of(
    st.builds(HumanMessage, CONTENT, **COMMON),
    st.builds(SystemMessage, CONTENT, **COMMON),
    st.builds(AIMessage, CONTENT, response_metadata=st.just({"model_name": "m"}), **COMMON),
    st.builds(ToolMessage, CONTENT, tool_call_id=TEXT, artifact=st.just([Document("text")]), **COMMON),
    st.builds(ChatMessage, CONTENT, role=st.sampled_from(["user", "critic"])),
)


def upper(converted):
    """The same message, its texts in capitals; other parts go through as they are."""
    content = converted["content"]
    if isinstance(content, str):
        return {**converted, "content": content.upper()}
    parts = [{**part, "text": part["text"].upper()} if "text" in part else part for part in content]
    return {**converted, "content": parts}


@given(MESSAGE)
def test_back_from_a_rewriting_only_the_texts_are_others(message):
    before = copy.deepcopy(message)
    changed = with_content(message, upper(to_openai(message)))
    assert message == before
    assert type(changed) is type(message)
    assert [*message_texts([changed])] == [text.upper() for text in message_texts([message])]
    rest = {"content"}
    assert changed.model_dump(exclude=rest) == message.model_dump(exclude=rest)
    if isinstance(message, ToolMessage):
        assert changed.artifact is message.artifact
    if not isinstance(message.content, str):
        for old, new in zip(message.content, changed.content, strict=True):
            assert type(old) is type(new)
            if isinstance(old, dict):
                assert {**new, "text": 0} == {**old, "text": 0}


@given(MESSAGE)
def test_there_and_back_it_is_the_same(message):
    assert with_content(message, to_openai(message)) == message


@pytest.mark.parametrize(
    ("message", "role"),
    [
        (HumanMessage("text"), "user"),
        (AIMessage("text"), "assistant"),
        (AIMessageChunk("text"), "assistant"),
        (SystemMessage("text"), "system"),
        (ToolMessage("text", tool_call_id="1"), "tool"),
        (FunctionMessage("text", name="f"), "function"),
        (ChatMessage("text", role="critic"), "critic"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_roles(message, role):
    assert to_openai(message)["role"] == role


def test_tool_calls_keep_their_order_their_arguments_and_what_was_not_understood():
    message = AIMessage(
        "",
        tool_calls=[
            {"name": "read", "args": {"path": "ä.txt", "line": 3}, "id": "1"},
            {"name": "read", "args": {}, "id": "2"},
        ],
        invalid_tool_calls=[{"name": "read", "args": '{"path": ', "id": "3", "error": "no JSON"}],
    )
    calls = to_openai(message)["tool_calls"]
    assert [call["id"] for call in calls] == ["1", "2", "3"]
    assert [call["function"]["arguments"] for call in calls] == [
        '{"path": "ä.txt", "line": 3}',
        "{}",
        '{"path": ',
    ]
    assert "tool_calls" not in to_openai(AIMessage("text"))


def test_a_tools_answer_names_its_call():
    message = ToolMessage("text", tool_call_id="call 1", name="read", artifact=["never sent"])
    assert to_openai(message) == {
        "role": "tool",
        "content": "text",
        "name": "read",
        "tool_call_id": "call 1",
    }


def test_an_image_between_two_texts_stays_where_it_is():
    message = HumanMessage(["before", IMAGE, {"type": "text", "text": "after"}])
    converted = to_openai(message)
    assert converted["content"] == [
        {"type": "text", "text": "before"},
        IMAGE,
        {"type": "text", "text": "after"},
    ]
    assert with_content(message, upper(converted)).content == [
        "BEFORE",
        IMAGE,
        {"type": "text", "text": "AFTER"},
    ]


def test_another_shape_is_refused():
    with pytest.raises(ValueError, match="parts"):
        with_content(HumanMessage(["a"]), {"role": "user", "content": "a"})
    with pytest.raises(ValueError, match="shorter"):
        with_content(HumanMessage(["a", "b"]), {"role": "user", "content": [{"type": "text", "text": "a"}]})
