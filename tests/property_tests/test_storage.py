"""A saved index is the same index, and a damaged file is never anything else."""

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from contextpilot_integrations import ContextBlock, ContextIndex, ContextPilot, Namespace
from contextpilot_integrations.index.identifiers import decode_all, encode
from contextpilot_integrations.index.snapshot import NodeRow, Snapshot, take_snapshot
from contextpilot_integrations.index.storage import load_index, save_index, write_snapshots

files = settings(deadline=None, max_examples=80)

IDS = ["a", "1", 1, b"1", ("a", 1), ("a", ("1", None)), 2**80, -3]
contexts = st.lists(st.sampled_from(IDS), unique=True, max_size=6)
requests = st.none() | st.integers(0, 5) | st.tuples(st.text(max_size=2), st.just(2**70))
operations = st.lists(
    st.tuples(st.just("insert"), contexts, requests, st.integers(1, 4))
    | st.tuples(st.just("search"), contexts)
    | st.tuples(st.just("evict"), requests),
    max_size=25,
)
limits = st.fixed_dictionaries(
    {"capacity": st.none() | st.integers(1, 20), "max_requests": st.integers(1, 5)},
)
leaves = st.text() | st.integers() | st.integers(-(2**200), 2**200) | st.binary() | st.none()
surrogates = st.text(st.characters(codec=None, categories=["Cs", "Ll"]))
ids = st.recursive(leaves | surrogates, lambda inner: st.lists(inner, max_size=4).map(tuple))


def done(index, operations):
    """What an index answers to operations."""
    answers = []
    for name, *arguments in operations:
        if name == "insert":
            context, request, weight = arguments
            made = index.insert(context, [weight] * len(context), request)
            answers.append((made.node.path, made.cached_blocks, made.cached_weight))
        elif name == "search":
            match = index.search(*arguments)
            answers.append((match.blocks, match.weight, match.node.path))
        else:
            answers.append(index.evict(*arguments))
    return answers


def through_a_file(save, load):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        save(path)
        return load(path)


@given(st.lists(ids))
def test_ids_come_back_each_of_its_type(values):
    assert repr(decode_all(b"".join(map(encode, values)))) == repr(values)


@given(ids, ids)
def test_different_ids_have_different_bytes(left, right):
    assert (encode(left) == encode(right)) == (left == right)


@given(st.binary())
def test_any_bytes_are_ids_or_are_refused(data):
    with contextlib.suppress(ValueError):
        decode_all(data)


@files
@given(operations, operations, limits)
def test_a_loaded_index_behaves_as_the_saved_one(before, after, limits):
    index = ContextIndex(**limits)
    done(index, before)
    loaded = through_a_file(lambda path: save_index(index, path), lambda path: load_index(path, **limits))
    assert take_snapshot(loaded) == take_snapshot(index)
    assert done(loaded, after) == done(index, after)
    assert take_snapshot(loaded) == take_snapshot(index)
    loaded.check_integrity()


@files
@given(operations, limits)
def test_smaller_limits_hold_after_loading(before, limits):
    index = ContextIndex()
    done(index, before)
    loaded = through_a_file(lambda path: save_index(index, path), lambda path: load_index(path, **limits))
    loaded.check_integrity()
    assert loaded.capacity is None or loaded.total_weight <= loaded.capacity


prompts = st.lists(st.integers(0, 9), max_size=6)
traffic = st.lists(
    st.tuples(
        st.sampled_from([Namespace(), Namespace(tenant="t"), Namespace(preamble="p"), Namespace(model="m")]),
        prompts | st.lists(prompts, max_size=4).map(tuple),
        st.none() | st.integers(0, 5),
    ),
    max_size=20,
)


def planned(pilot, traffic):
    """The plans of a pilot; a tuple of prompts is a batch."""
    plans = []
    for namespace, prompt, request in traffic:
        if isinstance(prompt, tuple):
            batch = [[ContextBlock(id, "x" * id) for id in context] for context in prompt]
            plans.append(pilot.prepare_batch(batch, namespace=namespace))
        else:
            context = [ContextBlock(id, "x" * id) for id in prompt]
            plans.append(pilot.prepare(context, namespace=namespace, request_id=request))
            plans.append(pilot.evict(request and request - 1, namespace=namespace))
    return plans


@files
@given(traffic, traffic, st.none() | st.integers(1, 20), st.integers(1, 4))
def test_a_restart_changes_no_plan(before, after, capacity, max_namespaces):
    settings = {"capacity": capacity, "max_namespaces": max_namespaces, "on_error": "raise"}
    pilot, restarted = ContextPilot(**settings), ContextPilot(**settings)
    planned(pilot, before)
    through_a_file(pilot.save, restarted.load)
    assert planned(restarted, after) == planned(pilot, after)


def sample():
    index = ContextIndex()
    index.insert(["a", 1, b"x"], [2, 3, 4], ("r", 1))
    index.insert(["a", 1, "y"], [2, 3, 5])
    index.insert([("a", 1)], [1], "r2")
    return index


SAMPLE = take_snapshot(sample())
WHOLE = through_a_file(lambda path: save_index(sample(), path), Path.read_bytes)


def loaded_or_refused(data):
    with contextlib.suppress(ValueError):
        return through_a_file(lambda path: path.write_bytes(data), load_index)
    return None


@settings(files, max_examples=400)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=3))
def test_whatever_bytes_are_damaged_it_is_the_same_index_or_refused(damage):
    data = bytearray(WHOLE)
    for place, byte in damage:
        data[place] = byte
    index = loaded_or_refused(bytes(data))
    assert index is None or take_snapshot(index) == SAMPLE


@files
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, len(WHOLE)), st.binary(max_size=9))
def test_whatever_part_is_lost_it_is_the_same_index_or_refused(start, end, instead):
    index = loaded_or_refused(WHOLE[:start] + instead + WHOLE[end:])
    assert index is None or take_snapshot(index) == SAMPLE


numbers = st.integers(-2, 4) | st.integers(-(2**63), 2**63 - 1)
rows = st.builds(
    NodeRow,
    parent=st.integers(-1, 3) | numbers,
    position=st.integers(0, 3) | numbers,
    next_position=st.integers(0, 4) | numbers,
    accesses=numbers,
    anonymous=st.booleans(),
    distance=st.floats(),
    blocks=st.lists(st.integers(0, 9), max_size=2),
    weights=st.lists(st.integers(1, 3) | numbers, min_size=2, max_size=2),
)
root = st.builds(NodeRow, *map(st.just, (-1, 0, 4, 1, False, 0.0, (), ())))


@settings(files, max_examples=300)
@given(
    root, st.lists(rows, max_size=4), st.lists(st.tuples(requests, st.integers(-1, 4)), max_size=3), limits
)
def test_rows_of_any_kind_are_a_sound_index_or_refused(root, rows, requests, limits):
    rows = [row._replace(weights=row.weights[: len(row.blocks)]) for row in rows]
    snapshot = Snapshot(None, [root, *rows], requests, [])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        write_snapshots(path, [snapshot])
        with contextlib.suppress(ValueError):
            load_index(path, **limits).check_integrity()
