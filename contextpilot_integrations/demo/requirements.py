"""The packages that only the demo needs."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["require", "require_all"]

_PACKAGES = ("bm25s", "gguf", "langchain_openai", "matplotlib", "openai", "xllamacpp")


def require(module: str) -> Any:
    """Import and return a package of the ``demo`` extra.

    Raises:
        ImportError: If it is not installed; the message gives the command.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"the demo needs {module}; install what it needs with: "
            'pip install "contextpilot-integrations[demo]"',
            name=module,
        ) from error


def require_all() -> None:
    """Import every package of the ``demo`` extra.

    Raises:
        ImportError: If one is not installed; the message gives the command.
    """
    for package in _PACKAGES:
        require(package)
