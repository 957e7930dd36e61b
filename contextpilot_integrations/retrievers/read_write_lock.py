"""A lock that many readers share and a writer has alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ReadWriteLock"]


class ReadWriteLock:
    """Readers run side by side; a writer waits for them, and readers that come later wait for the writer.

    It must not be taken again by who holds it.
    """

    def __init__(self) -> None:
        self._entrance = threading.Lock()
        self._changed = threading.Condition()
        self._readers = 0

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold it beside other readers."""
        with self._entrance, self._changed:
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold it alone."""
        with self._entrance, self._changed:
            self._changed.wait_for(lambda: not self._readers)
            yield
