"""What conversations have shown the model so far: digests of blocks, no texts."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from contextpilot_integrations.block import MARKER_START, ContextBlock

__all__ = ["Fingerprint", "Session", "SessionKey", "Sessions", "standing"]

SessionKey = tuple[str, str]
"""A tenant and a session's id."""

_MARKER = re.compile(re.escape(MARKER_START) + r"([A-Za-z0-9_.-]{1,8})\]")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Recognises a block in a text, as it is rendered: its marker, then its text verbatim.

    Attributes:
        label: What its marker shows.
        length: The characters of the whole.
        digest: 16 bytes that stand for them.
        shown: Labels of markers that its own text shows.
    """

    label: str
    length: int
    digest: bytes
    shown: frozenset[str] = frozenset()

    @classmethod
    def of(cls, block: ContextBlock) -> Fingerprint:
        """Take a block's."""
        rendered = block.render()
        return cls(block.label, len(rendered), _digest(rendered), frozenset(_MARKER.findall(block.text)))


def standing(texts: Iterable[str], fingerprints: Iterable[Fingerprint]) -> set[Fingerprint]:
    """Return those whose block stands in one of the texts, whole and verbatim."""
    sought: defaultdict[str, set[Fingerprint]] = defaultdict(set)
    for fingerprint in fingerprints:
        sought[fingerprint.label].add(fingerprint)
    found: set[Fingerprint] = set()
    for text in texts if sought else ():
        for match in _MARKER.finditer(text):
            for fingerprint in sought.get(match[1], set()) - found:
                part = text[match.start() : match.start() + fingerprint.length]
                if len(part) == fingerprint.length and _digest(part) == fingerprint.digest:
                    found.add(fingerprint)
    return found


@dataclass(slots=True)
class Session:
    """One conversation. Takes no lock.

    Attributes:
        limit: How many labels, and how many annotations, it remembers, the least recent forgotten first.
        annotations: What location annotations were written, and which block each stands for.
        trusted: Whether the model saw the text behind every annotation that it was shown.
    """

    limit: int
    annotations: OrderedDict[str, Fingerprint] = field(default_factory=OrderedDict)
    trusted: bool = True
    _sent: OrderedDict[str, Fingerprint | None] = field(default_factory=OrderedDict)

    @property
    def sent(self) -> list[Fingerprint]:
        """The blocks that the model was shown whole, but those whose label could name another text too."""
        return [fingerprint for fingerprint in self._sent.values() if fingerprint is not None]

    def add_sent(self, fingerprints: Iterable[Fingerprint]) -> None:
        """Take note of blocks that the model was shown whole."""
        for fingerprint in fingerprints:
            known = self._sent.get(fingerprint.label, fingerprint)
            self._remember(fingerprint.label, fingerprint if known == fingerprint else None)
            for label in fingerprint.shown:
                self._remember(label, None)

    def add_annotations(self, annotations: Mapping[str, Fingerprint]) -> None:
        """Take note of location annotations and what each stands for."""
        for annotation, fingerprint in annotations.items():
            self.annotations[annotation] = fingerprint
            self.annotations.move_to_end(annotation)
        while len(self.annotations) > self.limit:
            self.annotations.popitem(last=False)

    def _remember(self, label: str, fingerprint: Fingerprint | None) -> None:
        self._sent[label] = fingerprint
        self._sent.move_to_end(label)
        if len(self._sent) > self.limit:
            self._sent.popitem(last=False)


class Sessions:
    """The conversations that go on, each forgotten some time after its last turn. Takes no lock.

    Args:
        limit: How many there are at most, the least recently used forgotten first.
        seconds: How long one is kept after its last use.
        labels: How many blocks each remembers.
        clock: Tells the time in seconds.
    """

    def __init__(self, limit: int, seconds: float, labels: int, clock: Callable[[], float]) -> None:
        self._limit, self._seconds, self._labels, self._clock = limit, seconds, labels, clock
        self._sessions: OrderedDict[SessionKey, tuple[Session, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: SessionKey) -> Session:
        """Return a session; a new one where it is not known or has expired."""
        now = self._clock()
        while self._sessions:
            oldest = next(iter(self._sessions))
            if now - self._sessions[oldest][1] < self._seconds:
                break
            del self._sessions[oldest]
        session = self._sessions[key][0] if key in self._sessions else Session(self._labels)
        self._sessions[key] = session, now
        self._sessions.move_to_end(key)
        if len(self._sessions) > self._limit:
            self._sessions.popitem(last=False)
        return session


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
