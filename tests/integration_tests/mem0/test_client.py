"""The clients of Mem0's platform, against a server of our own on the loopback that speaks its API.

It is not the platform: it was written from what the client of mem0ai 2.2.1 sends and returns, and it finds
whatever has a word in common with the query.
"""

import json
import re
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from contextpilot_integrations import ContextPilot
from contextpilot_integrations.mem0 import AsyncContextPilotMemory, ContextPilotMemory

mem0 = pytest.importorskip("mem0")
SearchMemoryOptions = pytest.importorskip("mem0.client.types").SearchMemoryOptions

FACTS = [
    "For breakfast Ada eats porridge with blueberries, and she never drinks coffee before nine.",
    "For dinner Ada cooks a curry on most days, always without nuts, since she is allergic to them.",
]


class Platform(ThreadingHTTPServer):
    """Serves while its ``with`` block runs, and keeps what it is told."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.memories = []
        self.paths = []

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.shutdown()
        self.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def found(self, filters, query=None):
        words = set(re.findall(r"\w+", (query or "").lower()))
        return [
            {**memory, **({} if query is None else {"score": 0.5})}
            for memory in self.memories
            if memory["user_id"] == filters["user_id"]
            and (query is None or words & set(re.findall(r"\w+", memory["memory"].lower())))
        ]

    def answer(self, method, path, body):
        self.paths.append(f"{method} {path}")
        match method, path.split("?")[0].strip("/").split("/"):
            case "GET", ["v1", "ping"]:
                return {"status": "ok", "org_id": "o", "project_id": "p", "user_email": "test@example.org"}
            case "POST", ["v3", "memories", "add"]:
                added = [
                    {"id": str(uuid.uuid4()), "memory": message["content"], "user_id": body["user_id"]}
                    for message in body["messages"]
                ]
                self.memories += added
                return {"results": [{**memory, "event": "ADD"} for memory in added]}
            case "POST", ["v3", "memories", "search"]:
                return {"results": self.found(body["filters"], body["query"])}
            case "POST", ["v3", "memories"]:
                results = self.found(body["filters"])
                return {"count": len(results), "next": None, "previous": None, "results": results}
            case "PUT", ["v1", "memories", id]:
                memory = next(one for one in self.memories if one["id"] == id)
                memory["memory"] = body["text"]
                return memory
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer()

    do_POST = do_PUT = do_GET

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.answer(self.command, self.path, json.loads(body) if body else None)
        content = json.dumps(answer or {"detail": "not found"}).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args):
        pass


@pytest.fixture
def platform():
    with Platform() as platform:
        yield platform


@pytest.fixture(params=["sync", "async"])
async def memory(request, platform, done):
    pilot = ContextPilot(on_error="raise")
    if request.param == "sync":
        client = mem0.MemoryClient(api_key="secret", host=platform.url)
        yield ContextPilotMemory(client, pilot=pilot)
        client.client.close()
    else:
        async with mem0.AsyncMemoryClient(api_key="secret", host=platform.url) as client:
            yield AsyncContextPilotMemory(client, pilot=pilot)


@pytest.fixture
async def ada(memory, done):
    for fact in FACTS:
        await done(memory.add(fact, user_id="ada"))
    return {"user_id": "ada"}


async def test_a_search_has_the_platforms_answer_and_a_plan(memory, platform, done, ada):
    found = await done(memory.search("dinner and breakfast", filters=ada, top_k=5))
    assert [entry["memory"] for entry in found["results"]] == FACTS
    assert [entry["score"] for entry in found["results"]] == [0.5, 0.5]
    assert [entry["contextpilot"]["rank"] for entry in found["results"]] == [0, 1]
    assert json.loads(found["contextpilot"]["tenant"]) == ada
    assert platform.paths[-1] == "POST /v3/memories/search/"


async def test_the_clients_options_name_the_user(memory, done, ada):
    found = await done(memory.search("dinner", SearchMemoryOptions(filters=ada, top_k=3)))
    assert [entry["memory"] for entry in found["results"]] == [FACTS[1]]
    assert json.loads(found["contextpilot"]["tenant"]) == ada


async def test_what_else_the_platform_tells_is_kept(memory, done, ada):
    found = await done(memory.get_all(filters=ada))
    assert [*found] == ["count", "next", "previous", "results"]
    assert found["count"] == 2


async def test_the_platforms_errors_go_through(memory, done, ada):
    with pytest.raises(ValueError, match="Top-level entity parameters"):
        await done(memory.search("dinner", user_id="ada"))
    with pytest.raises(pytest.importorskip("mem0.exceptions").MemoryError):
        await done(memory.get("nobody"))


async def test_a_chat_over_the_platform(memory, done, ada):
    messages = [{"role": "system", "content": "Answer in a few words."}]
    first = await done(memory.turn_context("dinner and breakfast", messages, filters=ada))
    messages += [
        {"role": "user", "content": f"{first.text}\n\nWhat does she eat?"},
        {"role": "assistant", "content": "Curry."},
    ]
    curry = first.found["results"][1]
    await done(memory.update(curry["id"], text="For dinner Ada cooks a soup, and nuts are fine again."))
    second = await done(memory.turn_context("dinner and breakfast", messages, filters=ada))
    breakfast, soup = [f"[CB_{entry['contextpilot']['label']}]" for entry in second.found["results"]]
    old = curry["contextpilot"]["label"]
    assert second.text == (
        f"Please refer to {breakfast} in the previous conversation.\n\n"
        f"{soup} For dinner Ada cooks a soup, and nuts are fine again.\n\n"
        f"Please note that {soup} replaces [CB_{old}] in the previous conversation."
    )
