import json

import pytest

from contextpilot_integrations.evaluation.conversations import (
    filler,
    read_file_agents,
    read_retrieval_chats,
    read_tool_agents,
)
from contextpilot_integrations.evaluation.jsonl import TraceError
from contextpilot_integrations.evaluation.prompt import count_tokens


@pytest.fixture
def files(tmp_path):
    """Writes a trace and its texts, and returns their paths."""

    def write(trace, texts):
        paths = tmp_path / "trace.jsonl", tmp_path / "blocks.jsonl"
        blocks = [{"id": id, "text": text} for id, text in texts.items()]
        for path, rows in zip(paths, (trace, blocks), strict=True):
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return paths

    return write


def turn(session, number, query, *ids):
    return {
        "query_id": f"{session}-{number}",
        "session_id": session,
        "turn": number,
        "query": query,
        "block_ids": ids,
    }


class TestFiller:
    def test_its_length_is_exact(self):
        pytest.importorskip("bpe_openai")
        for tokens in (0, 1, 7, 600):
            assert count_tokens(filler(tokens, "seed")) == tokens

    def test_always_the_same_for_a_seed_and_another_for_another(self):
        assert filler(6, "seed") == filler(6, "seed")
        assert len({filler(20, f"{n}") for n in range(100)}) == 100


class TestFileAgents:
    def read(self, files, *trace, system_tokens=0):
        texts = {"a.txt": "Alpha.\n", "b.txt": "Beta.\n"}
        return read_file_agents(*files(trace, texts), system_tokens=system_tokens, answer_tokens=5)

    def test_each_file_is_read_by_a_tool_call(self, files):
        [conversation] = self.read(files, turn("s", 0, "Read in/a.txt and compare.", "a.txt", "b.txt"))
        user, call, text, second_call, second_text, answer = conversation.messages
        assert user == {"role": "user", "content": "Read in/a.txt and compare."}
        function = {"name": "read_file", "arguments": '{"path": "in/a.txt"}'}
        assert call == {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_0", "type": "function", "function": function}],
        }
        assert text == {"role": "tool", "tool_call_id": "call_0", "content": "Alpha.\n"}
        assert second_call["tool_calls"][0]["function"]["arguments"] == '{"path": "b.txt"}'
        assert second_text == {"role": "tool", "tool_call_id": "call_1", "content": "Beta.\n"}
        assert answer == {"role": "assistant", "content": filler(5, "answer s-0")}

    def test_every_step_of_the_agent_is_a_request(self, files):
        trace = turn("s", 0, "Read a.txt.", "a.txt"), turn("s", 1, "And now?")
        [conversation] = self.read(files, *trace, system_tokens=3)
        roles = [[message["role"] for message in request] for request in conversation.requests]
        first = ["system", "user"]
        assert roles == [
            first,
            [*first, "assistant", "tool"],
            [*first, "assistant", "tool", "assistant", "user"],
        ]
        assert conversation.messages[0]["content"] == filler(3, "system")

    def test_a_session_that_reads_what_is_not_there_is_left_out(self, files):
        trace = [turn("gone", 0, "Read c.txt.", "c.txt"), turn("gone", 1, "?"), turn("kept", 0, "?")]
        assert [conversation.session_id for conversation in self.read(files, *trace)] == ["kept"]


class TestRetrievalChats:
    def test_a_turn_is_its_blocks_and_its_last_question(self, files):
        trace = [
            turn("s", 1, "|user|: Why?", "a", "block-12345"),
            turn("t", 1, "|user|: Elsewhere?"),
            turn("s", 2, "|user|: Why?\n|user|: And\nhow?", "a"),
        ]
        texts = {"a": "Alpha.", "block-12345": "Beta."}
        conversation, other = read_retrieval_chats(*files(trace, texts), answer_tokens=4)
        user, answer, second, _ = conversation.messages
        label = user["content"].split("[CB_")[2][:6]
        assert user == {"role": "user", "content": f"[CB_a] Alpha.\n\n[CB_{label}] Beta.\n\nWhy?"}
        assert answer == {"role": "assistant", "content": filler(4, "answer s-1")}
        assert second == {"role": "user", "content": "[CB_a] Alpha.\n\nAnd\nhow?"}
        assert other.messages[0]["content"] == "Elsewhere?"
        assert [len(request) for request in conversation.requests] == [1, 3]


class TestToolAgents:
    def read(self, files, *messages):
        calls = '[{"arguments": "{\\"n\\":1}", "name": "f"}]'
        texts = {"s": "Be kind.", "u": "Hi.", "a": "Hello.", "t": "1.0"}
        texts |= {"call": calls, "both": f"One moment.{calls}", "broken": calls[:-1]}
        messages = [{"role": role, "block_id": block_id} for role, block_id in messages]
        return read_tool_agents(*files([{"session_id": 7, "messages": messages}], texts))

    def test_messages_stay_as_they_are(self, files):
        [conversation] = self.read(files, ("system", "s"), ("user", "u"), ("assistant", "a"))
        assert conversation.session_id == 7
        assert [message["content"] for message in conversation.messages] == ["Be kind.", "Hi.", "Hello."]

    def test_recorded_calls_become_tool_calls(self, files):
        recorded = ("assistant", "call"), ("tool", "t"), ("assistant", "both"), ("tool", "t")
        [conversation] = self.read(files, *recorded)
        call, text, second_call, second_text = conversation.messages
        assert call["content"] is None
        assert call["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"n":1}'}
        assert text == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "1.0"}
        assert second_call["content"] == "One moment."
        assert second_call["tool_calls"][0]["id"] == second_text["tool_call_id"] != text["tool_call_id"]

    def test_what_does_not_parse_is_text(self, files):
        [conversation] = self.read(files, ("assistant", "broken"))
        [answer] = conversation.messages
        assert answer["content"].startswith("[")
        assert "tool_calls" not in answer

    @pytest.mark.parametrize(("block_id", "reason"), [("x", "block 'x' is not"), (None, '"messages" must')])
    def test_a_bad_trace_names_the_line(self, files, block_id, reason):
        with pytest.raises(TraceError, match=f"trace.jsonl:1: {reason}"):
            self.read(files, ("user", block_id))
