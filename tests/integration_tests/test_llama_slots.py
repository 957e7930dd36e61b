"""What a pilot foretells of a real llama.cpp server's cache: its slots, and the host's memory behind them.

The model is the demo's without most of its layers: what it says is nonsense, and what is cached is the same.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from functools import cache

import pytest

from contextpilot_integrations import ContextBlock, ContextPilot, Slots
from contextpilot_integrations.demo.llama_server import LlamaServer
from contextpilot_integrations.demo.weights import packaged_weights
from contextpilot_integrations.engines.cache_size import CacheSize, ask_cache_size

openai = pytest.importorskip("openai")
Completions = pytest.importorskip("contextpilot_integrations.openai").Completions
gguf = pytest.importorskip("gguf")
pytest.importorskip("xllamacpp")
try:
    packaged_weights()
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

pytestmark = pytest.mark.model

LAYERS = 1
# Keys and values of 3 heads of 64 in 16 bits, and the place and the slot of each token.
BYTES_OF_A_TOKEN = LAYERS * 2 * 3 * 64 * 2 + 12
PREAMBLE = "Answer from the documents."
WORDS = ["river", "clock", "bridge", "market", "glass", "tower", "spring", "stone", "harbour", "mill"]
DRAWN = random.Random(0)
BLOCKS = [
    ContextBlock(str(i), " ".join(DRAWN.choices(WORDS, k=DRAWN.randrange(60, 150)))) for i in range(100, 118)
]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "shallow.gguf"
    reader = gguf.GGUFReader(packaged_weights())
    writer = gguf.GGUFWriter(path, arch=reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = LAYERS if key.endswith(".block_count") else field.contents()
            element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, value, field.types[0], sub_type=element)
    for tensor in reader.tensors:
        prefix, _, rest = tensor.name.partition(".")
        if prefix != "blk" or int(rest.partition(".")[0]) < LAYERS:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("requests", "slots", "cache_ram_mib"),
    [
        (200, Slots(4, host_tokens=10**6, kv_unified=True), 1000),  # As the command starts by itself.
        (100, Slots(2, host_tokens=6 * 2**20 // BYTES_OF_A_TOKEN), 6),
        (50, Slots(), 0),
    ],
    ids=["idle slots move", "memory for a few", "one slot"],
)
def test_what_a_pilot_expects_is_what_the_server_finds(weights, requests, slots, cache_ram_mib):
    right = expected = 0
    with LlamaServer(
        weights,
        n_ctx=2048,
        n_parallel=slots.n_parallel,
        kv_unified=slots.kv_unified,
        cache_ram_mib=cache_ram_mib,
    ) as server:
        # The client's own retries are for /tokenize: the server may close a connection that was idle.
        client = openai.OpenAI(base_url=server.base_url, api_key="none")

        @cache
        def count(text):
            url = server.base_url.removesuffix("/v1") + "/tokenize"
            return len(client.post(url, cast_to=object, body={"content": text})["tokens"])

        pilot = ContextPilot(slots=slots, token_counter=count, on_error="raise")
        completions = Completions(pilot, client, model=server.model, preamble=PREAMBLE)
        drawn = random.Random(1)
        for number in range(requests):
            context = drawn.sample(BLOCKS, k=5)
            completion = completions.complete(context, f"Question {number}?", max_tokens=3, temperature=0)
            plan, cached = completion.plan, completion.usage.cached_tokens
            # Where the blocks end, behind the template's tokens and the preamble's.
            ends, end = [], count(PREAMBLE) + 8
            for block in plan.blocks:
                end += count(block.render() + "\n\n")
                ends.append(end)
            right += abs(bisect_right(ends, cached + 2) - plan.expected_cached_blocks) <= 1
            expected += plan.expected_cached_blocks
        client.close()
        size = ask_cache_size(server.base_url)
    assert size == CacheSize(slots=Slots(slots.n_parallel))
    assert right >= 0.95 * requests
    assert expected > requests / 4  # There was something to expect.
    with pilot.index(completion.plan.namespace) as index:
        index.check_integrity()
