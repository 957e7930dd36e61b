"""A lock that many readers share and a writer has alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["ReadWriteLock"]


class ReadWriteLock:
    """Readers run side by side; a writer waits for them, and readers that come later wait for the writer.

    A thread that holds it cannot take it again, for it would wait for itself.
    """

    def __init__(self) -> None:
        self._entrance = threading.Lock()
        self._changed = threading.Condition()
        self._readers = 0
        self._here = threading.local()  # .held: whether this thread holds it, or waits for it

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold it beside other readers.

        Raises:
            RuntimeError: If this thread holds it already.
        """
        with self._once():
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
        """Hold it alone.

        Raises:
            RuntimeError: If this thread holds it already.
        """
        with self._once(), self._entrance, self._changed:
            self._changed.wait_for(lambda: not self._readers)
            yield

    @contextmanager
    def _once(self) -> Iterator[None]:
        if getattr(self._here, "held", False):
            raise RuntimeError("an index is in use here already: a filter must not search or change its own")
        self._here.held = True
        try:
            yield
        finally:
            self._here.held = False
