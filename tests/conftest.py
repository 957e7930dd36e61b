import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real traces that CONTEXTPILOT_DATA names; without it the test is skipped."""
    folder = os.environ.get("CONTEXTPILOT_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("CONTEXTPILOT_DATA names no folder of real traces")
    return Path(folder)
