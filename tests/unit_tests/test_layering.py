"""The rules of the house: who may import whom."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import contextpilot_integrations

PACKAGE = Path(contextpilot_integrations.__file__).parent
NAME = PACKAGE.name
ADAPTERS = {"langchain", "llama_index", "mem0", "openai"}
ECOSYSTEM = {
    "langchain": {"langchain", "langchain_core", "pydantic"},
    "llama_index": {"llama_index", "llama_index_instrumentation"},
    "mem0": {"mem0"},
    "openai": {"openai"},
}
BESIDE_ENGINES = {"httpx", "msgspec", "zmq"}
# Each retriever imports its own library, and none imports an adapter.
RETRIEVERS = {"faiss": {"faiss", "filelock", "numpy"}, "elasticsearch": {"elasticsearch"}}
RETRIEVER_MODULES = {"document_index": "faiss", "saved_index": "faiss"}
EXTRAS = [
    "elasticsearch",
    "faiss",
    "langchain",
    "langchain_core",
    "langchain_openai",
    "llama_index",
    "llama_index_instrumentation",
    "mem0",
    "openai",
    "bm25s",
    "gguf",
    "httpx",
    "matplotlib",
    "bpe_openai",
    "xllamacpp",
    "httpx",
    "msgspec",
    "zmq",
]
CORE_LIBRARIES = {"torch", "tqdm", "safetensors"}
COMMANDS = {"__main__", "bench_cli", "cli", "console"}
OUTSIDE_THE_CORE = {*ADAPTERS, "engines", "retrievers", "proxy", "ray", "evaluation", "demo", *COMMANDS}


def part_of(path):
    """The part of the package that a module belongs to: a folder's name, or "core"."""
    top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return top if top in OUTSIDE_THE_CORE else "core"


def imports(path):
    """All absolute names that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module


def own_libraries(path):
    """The libraries of the one retriever that a module belongs to; none if all share it."""
    store = RETRIEVER_MODULES.get(path.stem, path.stem.partition("_")[0])
    return RETRIEVERS.get(store, set())


MODULES = [pytest.param(path, id=str(path.relative_to(PACKAGE))) for path in sorted(PACKAGE.rglob("*.py"))]


@pytest.mark.parametrize("path", MODULES)
def test_a_module_imports_only_what_its_part_may(path):
    part = part_of(path)
    for name in imports(path):
        top, *rest = name.split(".")
        if top in sys.stdlib_module_names:
            continue
        if top == NAME:
            target = rest[0] if rest and rest[0] in OUTSIDE_THE_CORE else "core"
            if part in {"core", "engines"}:
                assert target in {"core", part}, f"{part} must not import {target}"
            elif part in ADAPTERS:
                assert target in {"core", "engines", part}, f"{part} must not import {target}"
            elif part == "retrievers":
                assert target in {"core", part}, f"{part} must not import {target}"
        elif part in {"core", "engines"}:
            allowed = CORE_LIBRARIES | BESIDE_ENGINES if part == "engines" else CORE_LIBRARIES
            assert top in allowed, f"{part} must not import {top}"
        elif part == "retrievers":
            allowed = {"langchain_core", "pydantic", *CORE_LIBRARIES, *own_libraries(path)}
            assert top in allowed, f"{path.name} must not import {top}"
        elif part in ECOSYSTEM:
            assert top in ECOSYSTEM[part] | CORE_LIBRARIES, f"{part} must not import {top}"


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_the_package_imports_with_no_extra_installed():
    result = run(
        "import sys\n"
        f"for name in {EXTRAS}:\n"
        "    sys.modules[name] = None\n"
        f"import {NAME}, {NAME}.cli, {NAME}.engines, {NAME}.evaluation\n"
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("adapter", sorted(ECOSYSTEM))
def test_an_adapter_names_the_extra_to_install(adapter):
    blocked = [*ECOSYSTEM[adapter]]
    result = run(
        f"import sys\nfor name in {blocked}:\n    sys.modules[name] = None\nimport {NAME}.{adapter}\n"
    )
    assert result.returncode != 0
    extra = adapter.replace("_", "-")
    assert f'pip install "contextpilot-integrations[{extra}]"' in result.stderr


def test_middleware_for_agents_names_the_extra_to_install_and_nothing_else_needs_it():
    result = run(
        "import sys\nsys.modules['langchain'] = None\n"
        f"import {NAME}.langchain\nprint('here')\nimport {NAME}.langchain.middleware\n"
    )
    assert result.stdout == "here\n"
    assert 'pip install "contextpilot-integrations[langchain-agents]"' in result.stderr


@pytest.mark.parametrize(("module", "needed"), [("kv_events", "msgspec"), ("subscriber", "zmq")])
def test_what_listens_to_an_engine_names_the_extra_to_install(module, needed):
    result = run(f"import sys\nsys.modules[{needed!r}] = None\nimport {NAME}.engines.{module}\n")
    assert result.returncode != 0
    assert 'pip install "contextpilot-integrations[events]"' in result.stderr


def test_asking_an_engine_names_the_extra_to_install():
    result = run(f"import sys\nsys.modules['httpx'] = None\nimport {NAME}.engines.cache_size\n")
    assert result.returncode != 0
    assert 'pip install "contextpilot-integrations[openai]"' in result.stderr


@pytest.mark.parametrize("retriever", sorted(RETRIEVERS))
@pytest.mark.parametrize("missing", ["own", "langchain_core"])
def test_a_retriever_names_the_extra_to_install(retriever, missing):
    blocked = retriever if missing == "own" else missing
    result = run(f"import sys\nsys.modules[{blocked!r}] = None\nimport {NAME}.retrievers.{retriever}\n")
    assert result.returncode != 0
    assert f'pip install "contextpilot-integrations[{retriever}]"' in result.stderr


def test_one_retriever_does_not_need_the_library_of_another():
    for one, other in (("faiss", "elasticsearch"), ("elasticsearch", "faiss")):
        pytest.importorskip(one)
        result = run(f"import sys\nsys.modules[{other!r}] = None\nimport {NAME}.retrievers.{one}\n")
        assert result.returncode == 0, result.stderr


def test_the_library_does_not_print_or_set_up_logging():
    for path in PACKAGE.rglob("*.py"):
        if part_of(path) in {*COMMANDS, "demo"}:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in {"print", "logging.basicConfig"}, f"{path}:{node.lineno}"
                assert not called.endswith((".setLevel", ".addHandler")), f"{path}:{node.lineno}"
