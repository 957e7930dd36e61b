"""Asking servers that do not tell how much their cache holds, or tell it badly."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from contextpilot_integrations.engines.cache_size import CacheSize, ask_cache_size

METRICS = """# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="100"} 1.0
vllm:cache_config_info{block_size="16",engine="1",num_gpu_blocks="90"} 1.0
"""


@pytest.fixture
def serve():
    """Serve these paths, each with its text, whoever owns the model."""
    servers = []

    def serve(owner, **paths):
        models = {"data": [{"id": "m", "owned_by": owner}]}
        texts = {"v1/models": json.dumps(models), **paths}

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                text = texts.get(self.path.strip("/"))
                asked.append((self.path, self.headers.get("Authorization")))
                self.send_response(404 if text is None else 200)
                self.end_headers()
                self.wfile.write((text or "").encode())

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}/v1"

    asked = serve.asked = []
    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_of_several_ranks_the_smallest_counts(serve):
    assert ask_cache_size(serve("vllm", metrics=METRICS)) == CacheSize(1440)


@pytest.mark.parametrize(
    ("owner", "paths"),
    [
        ("vllm", {}),
        ("vllm", {"metrics": "nothing of it"}),
        ("sglang", {"server_info": "<html>"}),
        ("sglang", {"server_info": "{}"}),
        ("llamacpp", {"props": "[1]"}),
        ("llamacpp", {"props": '{"total_slots": null}'}),
        ("somebody", {"metrics": METRICS}),
    ],
)
def test_what_is_not_told_is_not_known(serve, owner, paths):
    assert ask_cache_size(serve(owner, **paths)) == CacheSize()


def test_sglang_tells_its_tokens(serve):
    assert ask_cache_size(serve("sglang", server_info='{"max_total_num_tokens": 4096}')) == CacheSize(4096)


def test_the_key_is_sent(serve):
    ask_cache_size(serve("vllm", metrics=METRICS) + "/", api_key="k")
    assert serve.asked == [("/v1/models", "Bearer k"), ("/metrics", "Bearer k")]


def test_a_server_that_is_no_openai_server_is_an_error(serve):
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        ask_cache_size(serve("vllm").removesuffix("/v1") + "/elsewhere")
