"""What a real vLLM published, against what it answered: see data/README.md."""

import json
from pathlib import Path

import pytest

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.engines.cache_follower import CacheFollower, Noticed
from contextpilot_integrations.engines.event_stream import EventStream, is_end_of_replay
from contextpilot_integrations.engines.page_table import Prompt

PAGE = 32
DATA = Path(__file__).with_name("data")


def recording(name):
    return [json.loads(line) for line in (DATA / f"vllm-{name}.jsonl").read_text().splitlines()]


def frames(entry, kind="frames"):
    return [bytes.fromhex(frame) for frame in entry[kind]]


@pytest.fixture
def follower():
    return CacheFollower(ContextPilot())


@pytest.mark.parametrize("name", ["eviction", "salts", "copies", "replay"])
def test_each_prompt_hit_the_pages_that_the_events_before_it_left(follower, name):
    stream, reset, asked = EventStream(follower), False, 0
    for entry in recording(name):
        if "frames" in entry:
            stream.missing_before(frames(entry))
            stream.live(frames(entry))
            reset = False
        elif "sent" in entry:
            prompt = Prompt(entry["sent"]["token_ids"], entry["sent"].get("cache_salt"))
            # A reset is published with what comes next. The last token is computed in any case.
            held = 0 if reset else follower.cached_tokens(prompt)
            asked += 1
            assert entry["cached_tokens"] == min(held, (len(prompt.token_ids) - 1) // PAGE * PAGE)
        elif "reset" in entry:
            reset = True
    assert asked > 1
    assert {what for what, times in follower.noticed.items() if times} == {Noticed.CLEARED}
    assert follower.strangers == 0


def test_a_replay_stands_in_for_what_was_not_heard(follower):
    entries = recording("replay")
    first, second = [frames(entry) for entry in entries if "frames" in entry]
    start = next(place for place, entry in enumerate(entries) if "replay_from" in entry)
    answer = [frames(entry, "replayed") for entry in entries[start + 1 : start + 4]]
    assert [is_end_of_replay(message) for message in answer] == [False, False, True]

    stream = EventStream(follower)
    stream.live(first)
    later = [second[0], (int.from_bytes(second[1], "big") + 1).to_bytes(8, "big"), second[2]]
    assert stream.missing_before(later) == entries[start]["replay_from"]
    for message in answer[:-1]:
        stream.replayed(message)
    stream.live(later)
    assert follower.noticed[Noticed.LOST] == 0
    sent = [Prompt(entry["sent"]["token_ids"]) for entry in entries if "sent" in entry]
    assert [follower.cached_tokens(prompt) for prompt in sent] == [PAGE, PAGE]


def test_a_page_that_was_stored_three_times_is_gone_when_all_copies_are(follower):
    sent = []
    for entry in recording("copies"):
        if "frames" in entry:
            follower.take(frames(entry)[2])
        elif "sent" in entry:
            sent.append(Prompt(entry["sent"]["token_ids"]))
    # Of eleven blocks the last prompt took nine: all four of the first, and all but one of the fourth.
    assert [follower.cached_tokens(prompt) for prompt in sent] == [0, 0, 0, PAGE, 9 * PAGE]
