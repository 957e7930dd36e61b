"""A real HTTP server on the loopback that speaks OpenAI's chat API as an engine does, in any weather."""

import json
import sys
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest

from contextpilot_integrations import ContextBlock, ContextPilot
from contextpilot_integrations.openai import AsyncCompletions, Completions, retries

CARDS = {
    "vLLM": {"owned_by": "vllm", "max_model_len": 8192},
    "SGLang": {"owned_by": "sglang", "max_model_len": 8192},
    "llama.cpp": {"owned_by": "llamacpp", "meta": {"n_ctx": 8192}},
    "plain": {"owned_by": "somebody"},
}


@dataclass
class Weather:
    """How one request fares.

    Attributes:
        status: What it is answered with.
        headers: Beside it.
        cut: After how many chunks of the stream the connection is closed; the first holds only the role.
        chunked: Whether the answer's end is marked, so that a closed connection is no end.
        usage: What stands in the last chunk; "missing" sends no such chunk.
        deltas: The answer, a chunk each.
        wait: Seconds before the first token, in which a client that does not wait sends more.
        after: The question that has to arrive before the first token; it is waited for 10 seconds at most.
        body: What is sent instead of an answer, if anything is.
        content_type: Of that.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    chunked: bool = True
    usage: object = field(
        default_factory=lambda: {
            "prompt_tokens": 9,
            "completion_tokens": 2,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 4},
        }
    )
    deltas: tuple[dict[str, object], ...] = ({"content": "An "}, {"content": "answer."})
    wait: float = 0.0
    after: str = ""
    body: bytes = b""
    content_type: str = "text/event-stream"


class FakeEngine(ThreadingHTTPServer):
    """Records what arrives and when; ``log`` holds (event, question) in the order in which it happened.

    What the client must not know yet is logged before it is told: so a client that keeps to an order in the
    log always does, and one that does not is caught whenever it is too early.
    """

    daemon_threads = True
    request_queue_size = 128
    model = "m"

    def __init__(self, card):
        super().__init__(("127.0.0.1", 0), Handler)
        self.card = card
        self.lock = threading.Lock()
        self.arrived = threading.Condition(self.lock)
        self.bodies = []
        self.log = []
        self.listings = 0
        self.listing = Weather()
        self.weather = defaultdict(list)  # By question, one for each time that it arrives; then it is fine.
        self.fine = Weather()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    @property
    def arrivals(self):
        return [question for event, question in self.log if event == "arrived"]

    @property
    def in_flight(self):
        """How many requests were under way at a time, at most."""
        now = most = 0
        for event, _ in self.log:
            now += {"arrived": 1, "ended": -1}.get(event, 0)
            most = max(most, now)
        return most

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):  # The client hung up, as it may.
            super().handle_error(request, client_address)

    def note(self, event, question):
        with self.lock:
            self.log.append((event, question))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        with self.server.lock:
            self.server.listings += 1
        if self.path != "/v1/models":
            self.answer(404, {"error": {"message": "no such path"}})
        elif self.server.listing.status != 200:
            self.answer(self.server.listing.status, {"error": {"message": "not now"}})
        else:
            card = {"id": self.server.model, "object": "model", "created": 0, **self.server.card}
            self.answer(200, {"object": "list", "data": [card]})

    def do_POST(self):
        engine = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = body["messages"][-1]["content"].split("\n\n")[-1]
        with engine.lock:
            engine.bodies.append(body)
            engine.log.append(("arrived", question))
            engine.arrived.notify_all()
            script = engine.weather[question]
            weather = script.pop(0) if script else engine.fine
        if body["model"] != engine.model:
            weather = Weather(404)
        if weather.status != 200:
            engine.note("ended", question)
            self.answer(weather.status, {"error": {"message": "bad weather"}}, weather.headers)
            return
        if weather.body:
            engine.note("ended", question)
            self.send(200, weather.body, {"Content-Type": weather.content_type})
            return
        threading.Event().wait(weather.wait)
        if weather.after:
            with engine.arrived:
                engine.arrived.wait_for(lambda: weather.after in engine.arrivals, timeout=10)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(*(("Transfer-Encoding", "chunked") if weather.chunked else ("Connection", "close")))
        self.chunked = weather.chunked
        self.end_headers()
        try:
            self.stream(body, question, weather)
        except ConnectionError:
            engine.note("hung up", question)
            self.close_connection = True

    def stream(self, body, question, weather):
        deltas = [{"role": "assistant", "content": ""}, *weather.deltas, {}]
        for number, delta in enumerate(deltas):
            if number == weather.cut:
                self.server.note("ended", question)
                self.close_connection = True
                return
            if number == 1:
                self.server.note("first token", question)
            reason = "stop" if number == len(deltas) - 1 else None
            self.event(body, choices=[{"index": 0, "delta": delta, "finish_reason": reason}], usage=None)
        if weather.usage != "missing":
            self.event(body, choices=[], usage=weather.usage)
        self.server.note("ended", question)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def event(self, body, **rest):
        sent = body.get("request_id") or body.get("rid") or "own"
        head = {"id": f"chatcmpl-{sent}-0", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        self.chunk(b"data: " + json.dumps({**head, **rest}).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def answer(self, status, body, headers=()):
        self.send(status, json.dumps(body).encode(), {**dict(headers), "Content-Type": "application/json"})

    def send(self, status, data, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def start():
    """Start an engine by its name."""
    engines = []

    def start(name="vLLM"):
        engine = FakeEngine(CARDS[name])
        engines.append(engine)
        threading.Thread(target=engine.serve_forever, args=(0.01,), daemon=True).start()
        return engine

    yield start
    for engine in engines:
        engine.shutdown()
        engine.server_close()


@pytest.fixture
def engine(start):
    return start()


@pytest.fixture
def weather():
    return Weather


@pytest.fixture
def pilot():
    return ContextPilot(on_error="raise")


@pytest.fixture
def blocks():
    """Make blocks of words."""
    return lambda words: [ContextBlock(word, f"All about {word}.") for word in words.split()]


class Sync:
    """`Completions` behind the methods of its twin."""

    def __init__(self, completions):
        self._completions = completions

    async def complete(self, *args, **kwargs):
        return self._completions.complete(*args, **kwargs)

    async def complete_batch(self, *args, **kwargs):
        return self._completions.complete_batch(*args, **kwargs)

    async def read(self, *args, chunks=100, **kwargs):
        """Read a few chunks of a stream, which is then closed."""
        with self._completions.stream(*args, **kwargs) as stream:
            texts = [text for _, text in zip(range(chunks), stream, strict=False)]
        return texts, stream.completion


class Async(Sync):
    """`AsyncCompletions`, whose methods are these."""

    async def complete(self, *args, **kwargs):
        return await self._completions.complete(*args, **kwargs)

    async def complete_batch(self, *args, **kwargs):
        return await self._completions.complete_batch(*args, **kwargs)

    async def read(self, *args, chunks=100, **kwargs):
        texts = []
        async with self._completions.stream(*args, **kwargs) as stream:
            while len(texts) < chunks and (text := await anext(aiter(stream), None)) is not None:
                texts.append(text)
        return texts, stream.completion


@pytest.fixture
async def client():
    """Make an asynchronous client, which is closed in the loop that it was used in."""
    clients = []

    def client(server, **settings):
        clients.append(openai.AsyncOpenAI(base_url=server.base_url, api_key="none", **settings))
        return clients[-1]

    yield client
    for made in clients:
        await made.close()


@pytest.fixture(params=["sync", "async"])
def connect(request, pilot, client, monkeypatch):
    """Make completions of either kind, for a pilot and an engine."""
    monkeypatch.setattr(retries, "FIRST_DELAY", 0.0)

    def connect(server, pilot=pilot, *, max_retries=2, model="m", **settings):
        if request.param == "sync":
            sync = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=max_retries)
            return Sync(Completions(pilot, sync, model=model, **settings))
        asynchronous = client(server, max_retries=max_retries)
        return Async(AsyncCompletions(pilot, asynchronous, model=model, **settings))

    return connect
