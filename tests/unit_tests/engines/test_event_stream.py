"""Gaps, repetitions and restarts of an event stream, as the frames show them."""

import pytest

from contextpilot_integrations.engines.cache_follower import Noticed
from contextpilot_integrations.engines.event_stream import EventStream, is_end_of_replay, replay_request


class Follower:
    """Writes down what it is told."""

    def __init__(self):
        self.told = []

    def take(self, payload):
        self.told.append(payload.decode())

    def restarted(self):
        self.told.append("restarted")

    def doubt(self, why):
        self.told.append(why.value)


def frames(sequence, payload=None):
    return [b"topic", sequence.to_bytes(8, "big"), (payload or f"m{sequence}").encode()]


@pytest.fixture
def follower():
    return Follower()


@pytest.fixture
def stream(follower):
    return EventStream(follower)


def listen(stream, *sequences, replay=None):
    """Hand in live messages, and the replay for what is missing before one."""
    for sequence in sequences:
        start = stream.missing_before(frames(sequence))
        if start is not None and replay is not None:
            for message in replay(start):
                stream.replayed(message)
        stream.live(frames(sequence))


def engine(first, last, edition=""):
    """An engine that still has the messages ``first`` to ``last``."""
    return lambda start: [frames(s, f"m{s}{edition}") for s in range(max(start, first), last + 1)]


def test_messages_in_order(stream, follower):
    listen(stream, 0, 1, 2)
    assert follower.told == ["m0", "m1", "m2"]


def test_what_is_missing_is_replayed_once_and_in_order(stream, follower):
    listen(stream, 0, 3, 4, 5, replay=engine(0, 4))
    assert follower.told == ["m0", "m1", "m2", "m3", "m4", "m5"]


def test_without_a_replay_what_is_missing_is_lost(stream, follower):
    listen(stream, 0, 3)
    assert follower.told == ["m0", "lost", "m3"]


@pytest.mark.parametrize("first", [1, 2, 3, 9])
def test_a_replay_that_no_longer_reaches_back_is_a_loss(stream, follower, first):
    listen(stream, 0, 3, replay=engine(first, 3))
    assert follower.told[:2] == ["m0", "lost"]
    assert follower.told[-1] == "m3"
    assert follower.told.count("lost") == 1


def test_an_equal_message_under_another_number_is_not_the_last_one_taken(stream, follower):
    listen(stream, 0)
    stream.missing_before(frames(3))
    stream.replayed(frames(1, "m0"))
    assert follower.told == ["m0", "lost", "m0"]


def test_a_replay_that_breaks_off_is_a_loss(stream, follower):
    listen(stream, 0, 5, replay=engine(0, 2))
    assert follower.told == ["m0", "m1", "m2", "lost", "m5"]


def test_history_is_asked_for_and_is_no_loss_where_it_is_gone(stream, follower):
    listen(stream, 7, 8, replay=engine(5, 7))
    assert follower.told == ["m5", "m6", "m7", "m8"]


def test_a_sequence_that_falls_back_is_a_restart(stream, follower):
    listen(stream, 4, 5, 0, 1)
    assert follower.told == ["m4", "m5", "restarted", "m0", "m1"]


def test_after_a_restart_its_first_messages_are_replayed(stream, follower):
    listen(stream, 4, 5)
    listen(stream, 2, replay=engine(0, 2))
    assert follower.told == ["m4", "m5", "restarted", "m0", "m1", "m2"]


def test_a_restart_behind_a_gap_is_noticed_by_the_message_before_it(stream, follower):
    listen(stream, 0, 1, 3, replay=engine(0, 3, edition=" of another engine"))
    assert follower.told == [
        "m0",
        "m1",
        "lost",
        "m1 of another engine",
        "m2 of another engine",
        "m3 of another engine",
    ]


def test_a_gap_that_nothing_filled_does_not_touch_the_next_replay(stream, follower):
    listen(stream, 0, 5)
    listen(stream, 2, replay=engine(0, 2))
    assert follower.told == ["m0", "lost", "m5", "restarted", "m0", "m1", "m2"]


@pytest.mark.parametrize("bad", [[], [b""], [b"", b"1234567", b"x"], [b"", b"12345678"], [b""] * 4])
def test_frames_that_are_no_message_are_garbage(stream, follower, bad):
    listen(stream, 0)
    assert stream.missing_before(bad) is None
    stream.live(bad)
    listen(stream, 1)
    assert follower.told == ["m0", Noticed.GARBAGE.value, "m1"]


def test_replays_come_with_or_without_the_topic(stream, follower):
    assert stream.missing_before(frames(2)) == 0
    stream.replayed([b"", *frames(0)[1:]])
    stream.replayed([b"", *frames(1)])
    stream.live(frames(2))
    assert follower.told == ["m0", "m1", "m2"]


def test_a_replay_is_asked_for_by_eight_bytes_and_ends_with_minus_one():
    assert replay_request(258) == [b"", b"\x00\x00\x00\x00\x00\x00\x01\x02"]
    assert is_end_of_replay([b"", b"\xff" * 8, b""])
    assert is_end_of_replay([b"", b"", b"\xff" * 8, b""])
    assert not is_end_of_replay([b"", b"", b"\x00" * 8, b"x"])
    assert not is_end_of_replay([b""])
