"""Writes a tiny Llama and counts tokens with its tokenizer: run as a file, where transformers is installed.

Standard input is a JSON object with `write_tiny_llama`'s arguments under ``model``, and ``texts``; the last
line of standard output is the list of their token counts.
"""

import importlib.util
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    # Of the environment that called, this package alone is wanted, whatever else lies beside it.
    root = Path(__file__).parents[1]
    spec = importlib.util.spec_from_file_location(
        root.name, root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[root.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)

    from transformers import AutoTokenizer

    from contextpilot_integrations.evaluation.tiny_llama import write_tiny_llama

    job = json.load(sys.stdin)
    write_tiny_llama(**job["model"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"]["folder"])
    sys.stdout.write(f"\n{json.dumps([len(ids) for ids in tokenizer(job['texts'])['input_ids']])}\n")
