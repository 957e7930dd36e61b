"""The packages that only the demo needs."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["require", "require_all"]

# Whatever server answers. The demo's own one asks for what it needs itself when it starts.
_PACKAGES = ("bm25s", "langchain_openai", "matplotlib", "openai")


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
    """Import the packages that every run of the demo needs.

    Raises:
        ImportError: If one is not installed; the message gives the command.
    """
    for package in _PACKAGES:
        require(package)
