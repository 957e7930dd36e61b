"""The README's code, by the heading that it stands under."""

import re
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def code_under(heading: str) -> list[str]:
    """Return the Python blocks of a section, in their order."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)
