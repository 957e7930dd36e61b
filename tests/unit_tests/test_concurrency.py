"""One pilot shared by threads and tasks.

CONTEXTPILOT_SOAK_SECONDS says how long the threads that hunt for races run; `make soak` gives them a minute.
"""

import asyncio
import gc
import os
import random
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Namespace, Outcome
from contextpilot_integrations.index import recent

SECONDS = float(os.environ.get("CONTEXTPILOT_SOAK_SECONDS", "1"))
CAPACITY = 300


def blocks(*ids):
    return [ContextBlock(id) for id in ids]


def some_blocks(generator):
    return blocks(*generator.sample(range(60), generator.randint(0, 10)))


def check(plan, context):
    assert [context[rank] for rank in plan.ranks] == list(plan.blocks)
    assert sorted(plan.ranks) == list(range(len(context)))


@pytest.fixture
def eager_switches():
    """Threads that take turns 500 times as often, so that a race shows in a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_four_threads_request_while_others_evict_plan_batches_run_tasks_and_look(eager_switches):
    pilot = ContextPilot(capacity=CAPACITY, on_error="raise")
    stop, failures, evicted = threading.Event(), [], []
    sent = deque(maxlen=100)

    def request(generator):
        context, request_id = some_blocks(generator), generator.random()
        check(pilot.prepare(context, request_id=request_id), context)
        sent.append(request_id)

    def evict(generator):
        if sent:
            evicted.append(pilot.evict(sent.popleft()))
        assert not pilot.evict("unknown")

    def plan_a_batch(generator):
        contexts = [some_blocks(generator) for _ in range(20)]
        for plan, context in zip(pilot.prepare_batch(contexts).plans, contexts, strict=True):
            check(plan, context)

    def run_tasks(generator):
        contexts = [some_blocks(generator) for _ in range(20)]

        async def together():
            return await asyncio.gather(*map(pilot.aprepare, contexts), pilot.aprepare_batch(contexts))

        *plans, batch = asyncio.run(together())
        for plan, context in zip([*plans, *batch.plans], contexts * 2, strict=True):
            check(plan, context)

    def look(generator):
        with pilot.index() as index:
            index.check_integrity()  # That the capacity holds is a part of it.
            assert len(index) <= CAPACITY

    def work(step, seed):
        generator = random.Random(seed)
        try:
            step(generator)
            while not stop.is_set():
                step(generator)
        except BaseException as failure:
            failures.append(failure)
            stop.set()

    steps = [request, request, request, request, evict, plan_a_batch, run_tasks, look]
    threads = [threading.Thread(target=work, args=(step, seed)) for seed, step in enumerate(steps)]
    for thread in threads:
        thread.start()
    stop.wait(SECONDS)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert True in evicted
    assert pilot.outcomes[Outcome.ALIGNED] > 0
    with pilot.index() as index:
        index.check_integrity()
        for node in index:
            assert index.traverse(node.path) is node


def test_memory_is_bounded_once_the_capacity_is_full(monkeypatch):
    monkeypatch.setattr(recent, "_CONTEXTS", 50)
    pilot = ContextPilot(capacity=CAPACITY, max_namespaces=2, on_error="raise")
    generator = random.Random(1)

    def allocated_after(requests):
        for number in range(requests):
            namespace = Namespace(tenant=str(number % 10))
            pilot.prepare(some_blocks(generator), namespace=namespace)
            pilot.prepare(some_blocks(generator), request_id=generator.random())
        gc.collect()
        return sys.getallocatedblocks()

    before = allocated_after(400)
    assert allocated_after(400) < before + 400


@pytest.mark.parametrize("step", ["pilot.align_batch", "alignment.cluster", "pilot.schedule"])
def test_no_lock_is_held_over_a_whole_batch(monkeypatch, step):
    pilot = ContextPilot(on_error="raise")
    module, name = step.split(".")
    module = import_module(f"contextpilot_integrations.{module}")
    original, meanwhile = getattr(module, name), []

    def interrupted(*args, **settings):
        # Waits for the other thread, for which a lock that is held here would be held for ever.
        meanwhile.append(other.submit(pilot.prepare, blocks(1, 2)).result(timeout=10))
        return original(*args, **settings)

    monkeypatch.setattr(module, name, interrupted)
    with ThreadPoolExecutor(1) as other:
        batch = pilot.prepare_batch([blocks(2, 1, 3), blocks(4)])
    assert [plan.block_ids for plan in meanwhile] == [(1, 2)]
    assert batch.plans[0].expected_cached_blocks == (0 if step == "pilot.schedule" else 2)


async def test_the_event_loop_goes_on_while_a_batch_is_planned(monkeypatch):
    pilot = ContextPilot(on_error="raise")
    module = import_module("contextpilot_integrations.pilot")
    original, started, planned = module.align_batch, threading.Event(), threading.Event()

    def interrupted(*args, **settings):
        started.set()
        assert planned.wait(timeout=10)
        return original(*args, **settings)

    monkeypatch.setattr(module, "align_batch", interrupted)
    batch = asyncio.create_task(pilot.aprepare_batch([blocks(2, 1, 3)]))
    assert await asyncio.to_thread(started.wait, 10)
    assert (await pilot.aprepare(blocks(1, 2))).block_ids == (1, 2)
    planned.set()
    assert (await batch).plans[0].block_ids == (1, 2, 3)


def test_threads_share_a_pilot():
    pilot, workers = ContextPilot(capacity=200, max_namespaces=2), 8
    failures = []

    def work(seed):
        try:
            for step in range(60):
                ids = dict.fromkeys((seed * step + place * place) % 40 for place in range(8))
                namespace = Namespace(tenant=str(step % 3))
                plan = pilot.prepare(blocks(*ids), namespace=namespace, request_id=(seed, step))
                assert sorted(plan.block_ids) == sorted(ids)
                pilot.evict((seed, step - 3), namespace=namespace)
                if step % 20 == 0:
                    batch = pilot.prepare_batch([blocks(*ids), blocks(*reversed(ids))], namespace=namespace)
                    assert sorted(batch.plans[1].block_ids) == sorted(ids)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert pilot.outcomes[Outcome.FAILED] == 0
    assert sum(pilot.outcomes.values()) == workers * (60 + 3 * 2)
    with pilot.index(Namespace(tenant="0")) as index:
        index.check_integrity()


async def test_tasks_share_a_pilot_and_the_twins_agree():
    contexts = [blocks(*dict.fromkeys((n * p * p) % 30 for p in range(1, 7))) for n in range(100)]
    pilot, twin = ContextPilot(), ContextPilot()
    plans = await asyncio.gather(*(pilot.aprepare(context) for context in contexts))
    assert plans == [twin.prepare(context) for context in contexts]
    assert await pilot.aprepare_batch(contexts) == twin.prepare_batch(contexts)
