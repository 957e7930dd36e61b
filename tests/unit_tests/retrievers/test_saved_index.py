import json
import os
import stat
import threading

import pytest

faiss = pytest.importorskip("faiss")
pytest.importorskip("langchain_core")

from langchain_core.documents import Document
from word_embeddings import WordEmbeddings

from contextpilot_integrations import files
from contextpilot_integrations.retrievers import saved_index
from contextpilot_integrations.retrievers.faiss import FaissRetriever

TEXTS = ["one two", "two three", "emoji " + "🚲" * 10_000, "line\nbreak\r\u2028and \ud800 half a pair", ""]


@pytest.fixture
def retriever():
    retriever = FaissRetriever(embeddings=WordEmbeddings(), k=10)
    metadata = {"page": 3, "nested": {"list": [1, 2.5, None, True]}, "unicode": "ä"}
    retriever.add_documents([Document(text, metadata=metadata) for text in TEXTS])
    return retriever


@pytest.fixture
def folder(retriever, tmp_path):
    retriever.save(tmp_path / "index")
    return tmp_path / "index"


def load(folder):
    return FaissRetriever.load(folder, embeddings=WordEmbeddings(), k=10)


def member(folder, suffix):
    (path,) = folder.glob(f"*{suffix}")
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != saved_index._LOCK)


def test_what_is_loaded_finds_the_same(retriever, folder):
    loaded = load(folder)
    for query in ("one two", "three", "emoji", "nothing"):
        assert loaded.invoke(query) == retriever.invoke(query)
    assert loaded.k == 10
    loaded.add_documents([Document("one", id="new")])
    loaded.delete([retriever.invoke("three", k=1)[0].id])
    loaded.save(folder)
    assert load(folder).invoke("one") == loaded.invoke("one")


def test_nothing_is_pickled(retriever, folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    for name in ("pickle.loads", "pickle.load", "pickle.Unpickler"):
        monkeypatch.setattr(name, refuse)
    load(folder)
    assert [json.loads(line)["text"] for line in member(folder, ".jsonl").read_text().splitlines()] == TEXTS


def test_a_folder_holds_one_index_and_leaves_other_files_alone(retriever, folder):
    (folder / "notes.txt").write_text("mine")
    before = names(folder)
    retriever.save(folder)
    assert names(folder) == before
    retriever.add_documents([Document("more")])
    retriever.save(folder)
    assert len(names(folder)) == 4
    assert set(names(folder)) & set(before) == {"index.json", "notes.txt"}
    assert len(load(folder).index) == len(TEXTS) + 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_only_the_owner_may_read(folder):
    for name in names(folder):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("successes", [0, 1, 2])
def test_a_disk_that_is_full_leaves_the_last_index(retriever, folder, monkeypatch, successes):
    left = [None] * successes

    def fsync(descriptor):
        if not left:
            raise OSError("no space left on device")
        left.pop()

    expected, before = load(folder).invoke("one two"), names(folder)
    retriever.add_documents([Document("one two", id="more")])
    monkeypatch.setattr(files.os, "fsync", fsync)
    with pytest.raises(OSError, match="no space left"):
        retriever.save(folder)
    assert load(folder).invoke("one two") == expected
    assert names(folder) == before
    monkeypatch.undo()
    retriever.save(folder)
    assert len(load(folder).index) == len(TEXTS) + 1


def test_it_can_be_searched_and_changed_while_the_files_are_written(retriever, tmp_path, monkeypatch):
    write = saved_index.faiss.write_index

    def slow(vectors, path):
        retriever.add_documents([Document("meanwhile", id="m")])
        assert len(retriever.invoke("one")) == len(TEXTS) + 1
        write(vectors, path)

    monkeypatch.setattr(saved_index.faiss, "write_index", slow)
    retriever.save(tmp_path)
    assert len(load(tmp_path).index) == len(TEXTS)


@pytest.mark.parametrize("step", ["_check", "_digest", "_read_vectors", "_record"])
def test_it_can_be_saved_anew_while_it_is_loaded(retriever, folder, monkeypatch, step):
    original, other = getattr(saved_index, step), load(folder)

    def overtaken(*args):
        monkeypatch.undo()
        other.add_documents([Document("meanwhile", id="m")])
        other.save(folder)
        return original(*args)

    monkeypatch.setattr(saved_index, step, overtaken)
    loaded = load(folder)
    # Files that are open already are read to their end.
    assert len(loaded.index) == len(TEXTS) + (step != "_record")
    assert len(load(folder).index) == len(TEXTS) + 1


def test_who_saves_last_saves_the_newest_even_if_another_was_writing(retriever, folder, monkeypatch):
    write, other = saved_index._write_lines, None

    def overtaken(path, records):
        nonlocal other
        if other is None:
            # It writes anew what the folder names, which the other would delete.
            retriever.add_documents([Document("meanwhile", id="m")])
            other = threading.Thread(target=retriever.save, args=[folder])
            other.start()
            other.join(timeout=0.5)
        write(path, records)

    monkeypatch.setattr(saved_index, "_write_lines", overtaken)
    retriever.save(folder)
    other.join()
    assert len(load(folder).index) == len(TEXTS) + 1
    assert len(names(folder)) == 3


def test_many_may_save_into_a_folder_and_load_from_it(retriever, folder):
    savers = [threading.Thread(target=retriever.save, args=[folder]) for _ in range(12)]
    counts = []
    for number, saver in enumerate(savers):
        retriever.add_documents([Document("more", id=str(number))])
        saver.start()
        counts.append(len(load(folder).index))
    for saver in savers:
        saver.join()
    counts.append(len(load(folder).index))
    assert counts == sorted(counts)
    assert counts[-1] == len(TEXTS) + len(savers)
    assert len(names(folder)) == 3


def test_who_loads_takes_no_lock_and_writes_nothing(folder, monkeypatch):
    (folder / saved_index._LOCK).unlink(missing_ok=True)
    before = [*folder.iterdir()]
    monkeypatch.delattr(saved_index, "FileLock")
    load(folder)
    assert [*folder.iterdir()] == before


@pytest.mark.parametrize("text", ['{"my": "own"}', "[]", "no json", "", b"\xff"])
def test_what_something_else_saved_is_not_replaced(retriever, tmp_path, text):
    data = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "index.json").write_bytes(data)
    with pytest.raises(FileExistsError, match=r"index\.json was not saved by .*: save into another folder"):
        retriever.save(tmp_path)
    assert (tmp_path / "index.json").read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["index.json"]


def test_ones_own_is_replaced_though_its_files_are_gone(retriever, folder):
    for path in folder.glob("*-*"):
        path.unlink()
    edited(folder, version=2)
    retriever.save(folder)
    assert len(load(folder).index) == len(TEXTS)


def test_an_empty_index(tmp_path, folder, retriever):
    with pytest.raises(ValueError, match="add documents before saving"):
        FaissRetriever(embeddings=WordEmbeddings()).save(tmp_path)
    retriever.delete([document.id for document in retriever.invoke("")])
    retriever.save(folder)
    assert load(folder).invoke("one") == []


def edited(folder, **changes):
    index = json.loads((folder / "index.json").read_text())
    (folder / "index.json").write_text(json.dumps(index | changes))


def replaced(folder, suffix, data):
    """Put other bytes into a file, with a digest that fits."""
    path = member(folder, suffix)
    path.write_bytes(data)
    key = "vectors_file" if suffix == ".faiss" else "documents_file"
    entry = {"name": path.name, "bytes": len(data), "blake2b": saved_index._digest(path)}
    edited(folder, **{key: entry})


class TestDamage:
    @pytest.mark.parametrize("suffix", [".faiss", ".jsonl"])
    def test_a_flipped_bit(self, folder, suffix):
        path = member(folder, suffix)
        data = bytearray(path.read_bytes())
        for place in range(0, len(data), max(1, len(data) // 20)):
            data[place] ^= 1
            path.write_bytes(data)
            with pytest.raises(ValueError, match=f"cannot load {path}: its digest does not fit"):
                load(folder)
            data[place] ^= 1
        path.write_bytes(data)
        load(folder)

    @pytest.mark.parametrize("suffix", [".faiss", ".jsonl"])
    def test_a_file_that_was_cut_or_is_gone(self, folder, suffix):
        path = member(folder, suffix)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(ValueError, match=f"cannot load {path}: it has .* bytes instead of"):
            load(folder)
        path.unlink()
        with pytest.raises(ValueError, match=f"cannot load {path}: it is missing"):
            load(folder)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "Expecting value"),
            ("[]", "not saved by contextpilot-integrations"),
            ('{"format": "other"}', "not saved by contextpilot-integrations"),
            ('{"format": "contextpilot-faiss", "version": 2}', "version 2; only version 1"),
            ('{"format": "contextpilot-faiss", "version": 1}', "'documents'.*damaged"),
        ],
    )
    def test_the_file_that_names_the_others(self, folder, text, message):
        (folder / "index.json").write_text(text)
        with pytest.raises(ValueError, match=f"cannot load {folder / 'index.json'}: .*{message}"):
            load(folder)

    def test_no_saved_index(self, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"index\.json"):
            load(tmp_path)

    @pytest.mark.parametrize("name", ["../elsewhere", "/etc/passwd", "", 3])
    def test_a_name_that_leads_elsewhere(self, folder, name):
        edited(folder, documents_file={"name": name, "bytes": 1, "blake2b": ""})
        with pytest.raises(ValueError, match=r"index\.json: it names a file elsewhere"):
            load(folder)

    def test_sizes_that_do_not_fit_each_other(self, folder):
        edited(folder, documents=4)
        with pytest.raises(
            ValueError, match=r"\.faiss: it holds 5 vectors of 256 numbers; index\.json tells of 4"
        ):
            load(folder)
        edited(folder, documents=5, dimension=3)
        with pytest.raises(ValueError, match="of 5 of 3"):
            load(folder)
        edited(folder, dimension=256)
        lines = member(folder, ".jsonl").read_bytes().splitlines(keepends=True)
        replaced(folder, ".jsonl", b"".join(lines[:-1]))
        with pytest.raises(ValueError, match=r"\.jsonl: it holds 4 documents; index\.json tells of 5"):
            load(folder)
        replaced(folder, ".jsonl", b"".join([*lines[:-1], lines[0]]))
        with pytest.raises(ValueError, match="an id occurs twice"):
            load(folder)

    @pytest.mark.parametrize("line", [b"{}", b"[]", b'{"id": 1, "text": "a", "metadata": {}}', b"no json"])
    def test_a_line_that_is_no_document(self, folder, line):
        replaced(folder, ".jsonl", line + b"\n")
        with pytest.raises(ValueError, match=r"cannot load .*\.jsonl"):
            load(folder)

    def test_another_kind_of_faiss_index_is_not_even_read(self, folder, tmp_path, monkeypatch):
        other = tmp_path / "other.faiss"
        faiss.write_index(faiss.IndexFlatL2(256), str(other))
        replaced(folder, ".faiss", other.read_bytes())

        def refuse(path):
            raise AssertionError("read")

        monkeypatch.setattr(saved_index.faiss, "read_index", refuse)
        with pytest.raises(ValueError, match=r"\.faiss: it is no flat FAISS index by inner product"):
            load(folder)

    def test_faiss_cannot_read_it(self, folder):
        replaced(folder, ".faiss", member(folder, ".faiss").read_bytes()[:30])
        with pytest.raises(ValueError, match=r"\.faiss: FAISS cannot read it"):
            load(folder)
