import pytest
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, MessageRole, TextBlock

from contextpilot_integrations import ContextBlock, ContextPilot, Namespace, Outcome
from contextpilot_integrations.llama_index.messages import rewrite_messages, to_openai, with_content

LONG = "A cargo bike costs thirty euros for a whole day, and carries eighty kilograms."


def rewritten(messages, pilot=None, blocks=()):
    return rewrite_messages(messages, pilot=pilot or ContextPilot(), namespace=Namespace(), blocks=blocks)


@pytest.mark.parametrize(
    ("role", "expected"),
    [("user", "user"), ("chatbot", "assistant"), ("model", "assistant"), ("tool", "tool")],
)
def test_roles(role, expected):
    assert to_openai(ChatMessage("text", role=role)) == {"role": expected, "content": "text"}


def test_blocks_become_parts_and_texts_come_back():
    message = ChatMessage(
        role=MessageRole.USER, blocks=[TextBlock(text="one"), ImageBlock(image=b"abc"), TextBlock(text="two")]
    )
    before = message.model_copy(deep=True)
    given = to_openai(message)
    assert [part.get("text") for part in given["content"]] == ["one", None, "two"]
    parts = [given["content"][0], given["content"][1], {"type": "text", "text": "other"}]
    out = with_content(message, {**given, "content": parts})
    assert [block.text for block in out.blocks if isinstance(block, TextBlock)] == ["one", "other"]
    assert out.blocks[1] is message.blocks[1]
    assert message == before


def test_a_message_without_blocks():
    message = ChatMessage(role="assistant", additional_kwargs={"tool_calls": []})
    assert rewritten([message]) == [message]


def test_only_what_changes_is_copied():
    block = ContextBlock("1", LONG)
    messages = [
        ChatMessage(f"{block.render()}\n\nHow much?"),
        ChatMessage("Thirty.", role="assistant"),
        ChatMessage(f"{block.render()}\n\nHow heavy?", additional_kwargs={"kept": 1}),
    ]
    before = [message.model_copy(deep=True) for message in messages]
    pilot = ContextPilot()
    rewritten(messages[:1], pilot, [block])
    out = rewritten(messages, pilot, [block])
    assert messages == before
    assert [a is b for a, b in zip(out, messages, strict=True)] == [True, True, False]
    assert out[2].content == "Please refer to [CB_1] in the previous conversation.\n\nHow heavy?"
    assert out[2].additional_kwargs == {"kept": 1}


def test_what_a_tool_returned_twice_is_named():
    messages = [
        ChatMessage("Read it.", role="user"),
        ChatMessage("", role="assistant"),
        ChatMessage(f"{LONG}\n{LONG[::-1]}", role="tool"),
        ChatMessage("", role="assistant"),
        ChatMessage(f"{LONG}\n{LONG[::-1]}", role="tool"),
    ]
    assert LONG not in rewritten(messages)[4].content


def test_what_cannot_be_read_goes_out_as_it_is(caplog):
    pilot = ContextPilot()
    messages = [ChatMessage.model_construct(role="nobody", blocks=[TextBlock(text="secret")])]
    assert rewritten(messages, pilot) == messages
    assert pilot.outcomes[Outcome.FAILED] == 1
    assert "secret" not in caplog.text
