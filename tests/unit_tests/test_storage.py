import dataclasses
import json
import os
import stat
import threading
import uuid
from array import array

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from contextpilot_integrations import ContextBlock, ContextIndex, ContextPilot, Namespace
from contextpilot_integrations.index import storage
from contextpilot_integrations.index.identifiers import decode_all, encode
from contextpilot_integrations.index.rendering import render
from contextpilot_integrations.index.snapshot import NodeRow, Snapshot, take_snapshot
from contextpilot_integrations.index.storage import load_index, save_index, write_snapshots


@pytest.fixture
def path(tmp_path):
    return tmp_path / "index.safetensors"


def blocks(*ids):
    return [ContextBlock(id, f"the text of {id}") for id in ids]


def small_index():
    index = ContextIndex()
    index.insert(["a", "b", "c"], [2, 3, 4], "r1")
    index.insert(["a", "b", "d"], [2, 3, 5])
    index.insert(["e"], [1], "r2")
    return index


class TestIndex:
    def test_everything_comes_back(self, path):
        index = small_index()
        index.evict("r2")
        index.insert(["f"])
        save_index(index, path)
        loaded = load_index(path)
        assert take_snapshot(loaded) == take_snapshot(index)
        # Positions of children that are gone are not given again.
        assert loaded.insert(["g"]).node.path == (3,)

    def test_an_empty_index(self, path):
        save_index(ContextIndex(), path)
        assert len(load_index(path)) == 0

    def test_ids_of_all_kinds_stay_apart(self, path):
        ids = ["1", 1, b"1", ("1", 1), ("1", (1,)), -1, 2**200, -(2**64), "\ud800é", (), None]
        index = ContextIndex()
        index.insert(ids, request_id=("session", None, 2**70))
        save_index(index, path)
        (node,) = load_index(path)
        assert [*map(repr, node.blocks)] == [*map(repr, ids)]
        assert node.requests == {("session", None, 2**70)}

    @pytest.mark.parametrize("id", [1.5, True, frozenset(), uuid.UUID(int=1), ("a", 1.5)], ids=repr)
    def test_an_id_of_another_type_is_refused_by_name(self, path, id):
        name = "float" if isinstance(id, tuple) else type(id).__name__
        for index in (ContextIndex(), ContextIndex()):
            index.insert([id] if index.total_weight else ["a"], request_id=id)
            with pytest.raises(TypeError, match=f"not {name}$"):
                save_index(index, path)
        assert not os.listdir(path.parent)

    def test_tuples_nested_too_deep_are_refused(self, path):
        id = ()
        for _ in range(63):
            id = (id,)
        assert decode_all(encode(id)) == [id]
        with pytest.raises(ValueError, match="deeper than 64 levels"):
            encode((id,))
        nested = b""
        for _ in range(65):
            nested = b"t" + len(nested).to_bytes(8, "little") + nested
        with pytest.raises(ValueError, match="an id of unknown kind"):
            decode_all(nested)

    def test_a_weight_of_more_than_64_bits_is_refused(self, path):
        index = ContextIndex()
        index.insert(["a"], [2**63])
        with pytest.raises(ValueError, match="more than 64 bits"):
            save_index(index, path)

    def test_a_smaller_capacity_drops_as_always(self, path):
        index = small_index()
        save_index(index, path)
        loaded = load_index(path, capacity=12)
        # 15 tokens are 3 too many: the least recently used leaf is "c", of 4.
        assert [node.sequence for node in loaded] == [("a", "b"), ("a", "b", "d"), ("e",)]
        assert loaded.capacity == 12
        assert not loaded.evict("r1")

    def test_fewer_requests_forget_the_oldest_as_always(self, path):
        save_index(small_index(), path)
        loaded = load_index(path, max_requests=1, max_visits=7)
        assert (loaded.evict("r1"), loaded.evict("r2")) == (False, True)
        assert (loaded.max_requests, loaded.max_visits) == (1, 7)
        assert loaded.search(["a", "b", "c"]).weight == 9

    def test_two_thousand_nested_nodes(self, path):
        rows = [NodeRow(-1, 0, 1, 1, False, 0.0, (), ())]
        rows += [NodeRow(row, 0, 1, 1, True, 0.0, (row,), (1,)) for row in range(2000)]
        snapshot = Snapshot(None, rows, [], [])
        write_snapshots(path, [snapshot])
        index = load_index(path)
        assert take_snapshot(index) == snapshot
        assert len(render(index, max_nodes=5000).splitlines()) == 2001


class TestFile:
    def test_it_is_safetensors_with_its_version_in_the_header(self, path):
        save_index(small_index(), path)
        with safe_open(path, "pt") as file:
            assert file.metadata().keys() == {"format", "version", "digest"}
            assert file.metadata()["version"] == "1"
            assert file.get_tensor("node_parent").tolist() == [-1, 0, 0, 2, 2]

    def test_only_its_owner_may_read_it(self, path):
        save_index(small_index(), path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert os.listdir(path.parent) == [path.name]

    def test_equal_indexes_make_equal_columns(self, tmp_path):
        rows = take_snapshot(ContextIndex()).nodes
        # Two equal sets, which Python iterates over in different orders.
        contexts = frozenset([0, 8]), frozenset([8, 0])
        assert [*contexts[0]] != [*contexts[1]]
        for number, context in enumerate(contexts):
            write_snapshots(tmp_path / str(number), [Snapshot(None, rows, [], [context])])
        left, right = (load_file(tmp_path / name) for name in "01")
        assert all(torch.equal(left[name], right[name]) for name in left)

    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(self, path, monkeypatch):
        save_index(small_index(), path)
        before = path.read_bytes()

        def full(descriptor):
            raise OSError("disk full")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="disk full"):
            save_index(ContextIndex(), path)
        assert path.read_bytes() == before
        assert os.listdir(path.parent) == [path.name]

    def test_no_file(self, path):
        with pytest.raises(FileNotFoundError):
            load_index(path)

    @pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 64, b"\x02" + b"\0" * 7 + b"{}"])
    def test_another_file_is_refused_by_name(self, path, content):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"cannot load {path}: it "):
            load_index(path)

    def test_another_safetensors_file(self, path):
        save_file({"weight": torch.zeros(3)}, path, {"format": "pt"})
        with pytest.raises(ValueError, match="was not saved by contextpilot-integrations"):
            load_index(path)

    def test_each_cut_is_refused(self, path):
        save_index(small_index(), path)
        whole = path.read_bytes()
        for length in range(len(whole)):
            path.write_bytes(whole[:length])
            with pytest.raises(ValueError, match="cannot load"):
                load_index(path)


def rewritten(path, change, **metadata):
    """Write the file again with changed tensors and a digest that fits them."""
    tensors = load_file(path)
    change(tensors)
    columns = {
        name: array(code, tensors[name].flatten().tolist())
        for name, code in storage._COLUMNS.items()
        if name in tensors and tensors[name].dtype == storage._DTYPES[code][1]
    }
    metadata = {"format": "contextpilot", "version": "1", "digest": storage._digest(columns)} | metadata
    save_file(tensors, path, metadata)


def forged(**columns):
    """A change that sets, in each column named, the values at the places given."""

    def change(tensors):
        for name, values in columns.items():
            for place, value in values.items():
                tensors[name][place] = value

    return change


def replaced(name, tensor):
    return lambda tensors: tensors.update({name: tensor})


# The small index has the rows: root, "e", "a b", "d", "c".
@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda tensors: tensors.pop("ids"), "columns are missing or unknown: ids"),
        (replaced("more", torch.zeros(1)), "columns are missing or unknown: more"),
        (replaced("node_parent", torch.zeros(5)), "column node_parent is F32"),
        (replaced("node_parent", torch.zeros(1, 5, dtype=torch.int64)), r"of shape \[1, 5\]"),
        (replaced("node_parent", torch.zeros(4, dtype=torch.int64)), "column node_parent has 4 rows"),
        (replaced("request_node", torch.zeros(9, dtype=torch.int64)), "column request_node has 9 rows"),
        (replaced("owners", torch.zeros(0, dtype=torch.uint8)), "number of indexes"),
        (replaced("owners", torch.tensor([*encode(7)], dtype=torch.uint8)), "namespaces of a pilot"),
        (replaced("ids", torch.tensor([*encode("a") * 7], dtype=torch.uint8)), "an id stands twice"),
        (replaced("ids", torch.tensor([*encode("a")], dtype=torch.uint8)), "an id that is not in the table"),
        (forged(ids={0: 120}), "an id of unknown kind"),
        (forged(ids={8: 255}), "an id is cut off"),
        (forged(ids={-1: 255}), "invalid start byte"),
        (forged(block_id={0: -1}), "an id that is not in the table"),
        (forged(node_blocks={0: -1, 1: 2}), "column node_blocks does not add up"),
        (forged(node_blocks={1: 2**62}), "column node_blocks does not add up"),
        (forged(index_nodes={0: 2**62}), "column index_nodes does not add up"),
        (forged(index_requests={0: 1}), "column index_requests does not add up"),
        (forged(node_parent={0: 0}), "the first node is no root"),
        (forged(node_parent={1: 1}), "node 1 does not stand behind its parent"),
        (forged(node_parent={2: 3}), "node 2 does not stand behind its parent"),
        (forged(node_parent={2: -1}), "node 2 does not stand behind its parent"),
        (forged(node_blocks={1: 0, 2: 3}), "node 1 adds no block"),
        (forged(block_weight={2: 0}), "node 2 lacks a weight of at least 1"),
        (forged(node_position={1: -1}), "node 1 has a negative count"),
        (forged(node_accesses={0: -1}), "node 0 has a negative count"),
        (forged(node_distance={2: float("nan")}), "node 2 has the distance nan"),
        (forged(node_position={1: 0, 2: 0}), "two siblings have the same position"),
        (forged(block_id={3: 4, 4: 4}), "two siblings start with the same block"),
        (forged(block_id={3: 1}), "a block occurs once in a sequence"),
        (forged(node_next_position={0: 1}), "positions are never given twice"),
        (forged(request_node={0: 5}), "a request ends at a node that is not there"),
        (forged(request_id={0: 0, 1: 0}), "a request id occurs twice"),
    ],
)
def test_a_file_that_is_no_index_is_refused(path, change, wrong):
    save_index(small_index(), path)
    rewritten(path, change)
    with pytest.raises(ValueError, match=f"cannot load {path}: .*{wrong}"):
        load_index(path)


def test_the_header_cannot_make_it_allocate(path):
    save_index(small_index(), path)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["node_parent"]["shape"] = [2**60]
    header = json.dumps(header).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    with pytest.raises(ValueError, match="no whole safetensors file"):
        load_index(path)


def test_damage_that_leaves_a_sound_index_is_noticed(path):
    save_index(small_index(), path)
    rewritten(path, forged(node_accesses={0: 9}))
    assert load_index(path).root.accesses == 9
    before = take_snapshot(small_index())
    save_index(small_index(), path)
    with safe_open(path, "pt") as file:
        digest = file.metadata()["digest"]
    rewritten(path, forged(node_accesses={0: 9}), digest=digest)
    with pytest.raises(ValueError, match="its digest does not fit, so it is damaged"):
        load_index(path)
    rewritten(path, forged(node_accesses={0: before.nodes[0].accesses}), digest=digest)
    assert take_snapshot(load_index(path)) == before


def test_versions(path):
    save_index(small_index(), path)
    rewritten(path, lambda tensors: tensors.update(more=torch.zeros(1)), version="2")
    with pytest.raises(ValueError, match="it has version 2, and only version 1 can be read here"):
        load_index(path)


class TestPilot:
    def test_a_restart_keeps_its_orders(self, path):
        pilot = ContextPilot()
        pilot.prepare(blocks(2, 1, 3))
        pilot.prepare(blocks(9, 2, 1, 4), request_id="r")
        pilot.save(path)
        restarted = ContextPilot()
        restarted.load(path)
        request = blocks(4, 8, 1, 2)
        assert restarted.prepare(request) == pilot.prepare(request)
        assert restarted.evict("r")

    def test_what_was_cached_before_loading_is_gone(self, path):
        ContextPilot().save(path)
        pilot = ContextPilot()
        pilot.prepare(blocks(1))
        pilot.load(path)
        assert pilot.prepare(blocks(1)).expected_cached_blocks == 0

    def test_namespaces_come_back_in_their_order_of_use(self, path):
        pilot = ContextPilot()
        for tenant in ("a", "b", "a", "c"):
            pilot.prepare(blocks(1, 2), namespace=Namespace("http://x", "m", tenant, "Be brief."))
        pilot.save(path)
        restarted = ContextPilot(max_namespaces=2)
        restarted.load(path)
        cached = {
            tenant: restarted.prepare(
                blocks(1, 2), namespace=Namespace("http://x", "m", tenant, "Be brief.")
            ).expected_cached_blocks
            for tenant in ("c", "a", "b")
        }
        assert cached == {"c": 2, "a": 2, "b": 0}

    def test_known_preambles_are_nothing_to_warn_of_after_a_restart(self, path, caplog):
        namespaces = [Namespace(preamble=f"template {number}") for number in range(6)]
        pilot = ContextPilot()
        for namespace in namespaces * 2:
            pilot.prepare(blocks(1), namespace=namespace)
        pilot.save(path)
        caplog.clear()
        restarted = ContextPilot()
        restarted.load(path)
        for namespace in namespaces:
            restarted.prepare(blocks(1), namespace=namespace)
        assert not caplog.records
        for minute in range(4):
            restarted.prepare(blocks(1), namespace=Namespace(preamble=f"It is 12:1{minute}."))
        (record,) = caplog.records
        assert "differs at character 10" in record.getMessage()

    def test_no_text_is_in_the_file(self, path):
        pilot = ContextPilot()
        pilot.prepare(
            [ContextBlock("patient-17", "a confidential finding", {"ward": "the seventh"})],
            namespace=Namespace(preamble="You are a physician."),
        )
        pilot.save(path)
        for text in (b"patient", b"confidential", b"seventh", b"physician"):
            assert text not in path.read_bytes()

    def test_a_smaller_capacity_drops_as_always(self, path):
        pilot = ContextPilot(token_counter=len)
        pilot.prepare([ContextBlock(1, "x" * 5)])
        pilot.prepare([ContextBlock(2, "y" * 6)])
        pilot.save(path)
        restarted = ContextPilot(capacity=8, token_counter=len)
        restarted.load(path)
        with restarted.index() as index:
            assert index.total_weight == 6
        assert restarted.prepare([ContextBlock(2, "y" * 6)]).expected_cached_tokens == 6

    def test_a_refused_file_changes_nothing(self, path):
        pilot = ContextPilot()
        pilot.prepare(blocks(1, 2), request_id="r")
        save_index(small_index(), path)
        with pytest.raises(ValueError, match=f"cannot load {path}: a namespace's key"):
            pilot.load(path)
        snapshot = dataclasses.replace(take_snapshot(small_index()), owner=("", "", "", ""))
        write_snapshots(path, [snapshot, snapshot])
        with pytest.raises(ValueError, match="a namespace occurs twice"):
            pilot.load(path)
        write_snapshots(path, [dataclasses.replace(snapshot, owner=("", "", "", "text"))])
        with pytest.raises(ValueError, match="32 hex digits"):
            pilot.load(path)
        assert pilot.evict("r")

    def test_an_index_loader_names_the_right_one(self, path):
        pilot = ContextPilot()
        pilot.prepare(blocks(1), namespace=Namespace(tenant="a"))
        pilot.save(path)
        with pytest.raises(ValueError, match=r"load it with ContextPilot\.load"):
            load_index(path)

    def test_a_request_id_of_another_type(self, path):
        pilot = ContextPilot()
        pilot.prepare(blocks(1), request_id=uuid.UUID(int=1))
        with pytest.raises(TypeError, match="not UUID"):
            pilot.save(path)

    def test_no_lock_is_held_while_the_file_is_written(self, path, monkeypatch):
        pilot = ContextPilot()
        pilot.prepare(blocks(1, 2))
        write = storage.replace_file

        def slow(*args):
            planner = threading.Thread(target=pilot.prepare, args=(blocks(3),))
            planner.start()
            planner.join(timeout=10)
            assert not planner.is_alive()
            write(*args)

        monkeypatch.setattr(storage, "replace_file", slow)
        pilot.save(path)
        restarted = ContextPilot()
        restarted.load(path)
        assert restarted.prepare(blocks(3)).expected_cached_blocks == 0

    def test_saving_while_others_plan(self, path):
        pilot = ContextPilot(capacity=200)

        def plan(seed):
            for number in range(200):
                pilot.prepare(
                    blocks(*{(number * seed + k) % 30 for k in range(5)}), request_id=(seed, number)
                )

        planners = [threading.Thread(target=plan, args=(seed,)) for seed in (3, 7, 11)]
        for planner in planners:
            planner.start()
        while any(planner.is_alive() for planner in planners):
            pilot.save(path)
            # Loading proves the integrity of what was saved.
            ContextPilot(capacity=200).load(path)
        for planner in planners:
            planner.join()
