"""Writing files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["keep", "replace_file", "temporary_beside"]


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file, replaced if it is there; only its owner may read it.

    Raises:
        OSError: If it cannot be written; what was there before is there still.
    """
    with temporary_beside(path) as temporary:
        temporary.write_bytes(data)
        keep(temporary, path)


@contextmanager
def temporary_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty file in the folder of ``path``; it is gone afterwards unless `keep` gave it a name."""
    descriptor, name = tempfile.mkstemp(dir=Path(path).parent, prefix=".contextpilot-")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def keep(temporary: Path, path: str | os.PathLike[str]) -> None:
    """Give a file that was written its name, once its bytes are on the disk."""
    with temporary.open("r+b") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
