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


def test_a_writer_is_alone():
    lock, inside, most = ReadWriteLock(), [], []

    def work(hold, kind):
        for _ in range(300):
            with hold():
                inside.append(kind)
                most.append((inside.count("read"), inside.count("write")))
                inside.remove(kind)

    threads = [started(lambda: work(lock.reading, "read")) for _ in range(4)]
    threads += [started(lambda: work(lock.writing, "write")) for _ in range(3)]
    for thread in threads:
        thread.join()
    assert len(most) == 7 * 300
    assert all(not writers or (readers, writers) == (0, 1) for readers, writers in most)


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


@pytest.mark.parametrize("hold", ["reading", "writing"])
def test_an_error_inside_lets_go(hold):
    lock = ReadWriteLock()
    with pytest.raises(KeyError), getattr(lock, hold)():
        raise KeyError
    with lock.writing():
        pass
    with lock.reading():
        pass
