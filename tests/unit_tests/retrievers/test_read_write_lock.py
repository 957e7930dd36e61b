import threading

import pytest

pytest.importorskip("langchain_core")

from contextpilot_integrations.retrievers.read_write_lock import ReadWriteLock


def started(target):
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def test_readers_run_side_by_side():
    lock, together = ReadWriteLock(), threading.Barrier(4)

    def read():
        with lock.reading():
            together.wait(timeout=30)

    threads = [started(read) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert not together.broken


@pytest.mark.parametrize(
    ("inside", "outside"), [("reading", "writing"), ("writing", "reading"), ("writing", "writing")]
)
def test_a_writer_is_alone(inside, outside):
    lock, entered = ReadWriteLock(), threading.Event()

    def enter():
        with getattr(lock, outside)():
            entered.set()

    with getattr(lock, inside)():
        thread = started(enter)
        # However long that takes: whoever is outside stays there.
        assert not entered.wait(timeout=0.2)
    assert entered.wait(timeout=60)
    thread.join()


def test_a_writer_gets_in_though_readers_never_pause():
    lock, written = ReadWriteLock(), threading.Event()

    def read():
        while not written.is_set():
            with lock.reading():
                pass

    def write():
        with lock.writing():
            written.set()

    threads = [started(read) for _ in range(4)] + [started(write)]
    assert written.wait(timeout=60)
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("inner", ["reading", "writing"])
@pytest.mark.parametrize("outer", ["reading", "writing"])
def test_a_thread_that_holds_it_cannot_take_it_again(outer, inner):
    lock = ReadWriteLock()
    for _ in range(2):
        with getattr(lock, outer)(), pytest.raises(RuntimeError, match="in use here already"):
            getattr(lock, inner)().__enter__()


@pytest.mark.parametrize("hold", ["reading", "writing"])
def test_an_error_inside_lets_go(hold):
    lock = ReadWriteLock()
    with pytest.raises(KeyError), getattr(lock, hold)():
        raise KeyError
    with lock.writing():
        pass
    with lock.reading():
        pass
