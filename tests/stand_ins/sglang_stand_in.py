"""A stand-in for SGLang, which does not run without a GPU.

It is no SGLang: it was written from what the source of version 0.5.23 says, and a test that passes with it
says that the package fits that reading. It speaks, over real HTTP and ZeroMQ sockets on the loopback,

- ``/v1/models``, ``/v1/chat/completions`` (streamed), ``/tokenize``, ``/flush_cache``, ``/server_info``, as
  far as tests ask them (srt/entrypoints/http_server.py, openai/protocol.py);
- the KV events and their replay (srt/disaggregation/kv_events.py): signed hashes, stored pages of a chain
  and adjacent removals merged into one event, the salt on each event, the topic empty;

and has a radix cache in pages whose leaves go as a whole, the least recently used first
(srt/mem_cache/radix_cache.py). Its tokenizer takes words, and its model always says the same.
"""

import hashlib
import json
import re
import sys
import tempfile
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from zlib import crc32

import msgspec
import zmq

__all__ = ["SGLangStandIn", "tokenize"]

_END = b"\xff" * 8
_ANSWER = " I do not know."


def tokenize(text):
    """Take each word, with a space before it, and each other character as a token."""
    return [crc32(token.encode()) for token in re.findall(r" ?\w+|\W", text)]


class SGLangStandIn:
    """Serves while its ``with`` block runs; its addresses stay the same when it is restarted.

    Args:
        tokens: How many tokens its cache holds; no prompt may be longer.
        page_tokens: Tokens a page.
        kept_messages: How many messages of the event stream can be replayed.

    Attributes:
        prompts: The token ids of each prompt that was computed, in order.
        bodies: The requests for completions, in order.
        tokenizing: What ``/tokenize`` answers instead of tokens, as status and content; None: tokens.
        tokenizing_waits: ``/tokenize`` does not answer while this event is not set.
        asked_to_tokenize: How often it was asked.
        failures: How many requests for completions are refused from now on, as if it were overloaded.
        prefix: Tokens that it computes before each prompt and does not tell of, as if ``/tokenize`` and the
            completions knew different templates.
        loses: Tells of a message's number whether it is lost on its way.
        late: Whether messages are held back, until it is set to False.
    """

    model = "m"

    def __init__(self, *, tokens=1200, page_tokens=16, kept_messages=10_000):
        self.tokens, self.page_tokens = tokens, page_tokens
        self.prompts, self.bodies = [], []
        self.tokenizing = None
        self.tokenizing_waits = threading.Event()
        self.tokenizing_waits.set()
        self.asked_to_tokenize = self.failures = 0
        self.prefix = []
        self.loses = lambda number: False
        self._kept_messages = kept_messages
        self._lock = threading.Lock()
        self._late, self._held_back = False, []

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="sgl-")  # Short: an ipc path has little room.
        self.events_endpoint = f"ipc://{self._folder.name}/events"
        self.replay_endpoint = f"ipc://{self._folder.name}/replay"
        context = zmq.Context.instance()
        self._pub, self._router = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        for socket, endpoint in ((self._pub, self.events_endpoint), (self._router, self.replay_endpoint)):
            socket.set(zmq.LINGER, 0)
            socket.bind(endpoint)
        self._closing = threading.Event()
        self._http = _HttpServer(("127.0.0.1", 0), _Handler)
        self._http.engine = self
        self._threads = [
            threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True),
            threading.Thread(target=self._replay, daemon=True),
        ]
        self._start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.tokenizing_waits.set()
        self._http.shutdown()
        self._closing.set()
        for thread in self._threads:
            thread.join()
        self._http.server_close()
        self._pub.close()
        self._folder.cleanup()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self._http.server_address[1]}/v1"

    @property
    def late(self):
        return self._late

    @late.setter
    def late(self, late):
        with self._lock:
            self._late = late
            while self._held_back and not late:
                self._pub.send_multipart(self._held_back.pop(0))

    def wait_for_subscriber(self):
        assert self._pub.poll(20_000), "nobody subscribed"
        self._pub.recv()

    def restart(self):
        """Begin anew, as a process would that is started at the same addresses."""
        with self._lock:
            self._start()

    def flush(self):
        with self._lock:
            self._cache.clear()
            self._publish()

    def compute(self, token_ids, salt, session_id):
        """Compute a prompt and the answer, and return how many tokens of it were cached."""
        with self._lock:
            self.prompts.append(token_ids)
            cached = self._cache.compute(token_ids, tokenize(_ANSWER), salt, session_id)
            self._publish()
            return cached

    def _start(self):
        self._numbers = count()
        self._buffer = deque(maxlen=self._kept_messages)
        self._cache = _RadixCache(self.tokens, self.page_tokens)
        self._publish()

    def _publish(self):
        events = self._cache.take_events()
        if not events:
            return
        number = next(self._numbers)
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._buffer.append((number, payload))
        frames = [b"", number.to_bytes(8, "big"), payload]
        if self._late:
            self._held_back.append(frames)
        elif not self.loses(number):
            self._pub.send_multipart(frames)

    def _replay(self):
        while not self._closing.is_set():
            if not self._router.poll(20):
                continue
            client, _, start = self._router.recv_multipart()
            with self._lock:
                messages = [*self._buffer]
            for number, payload in messages:
                if number >= int.from_bytes(start, "big"):
                    self._router.send_multipart([client, b"", b"", number.to_bytes(8, "big"), payload])
            self._router.send_multipart([client, b"", b"", _END, b""])
        self._router.close()


class _Node:
    """An edge of the radix tree: a number of pages behind those of its parent, with a hash each."""

    def __init__(self, parent, pages, hashes):
        self.parent, self.pages, self.hashes = parent, pages, hashes
        self.children = {}
        self.used = 0


class _RadixCache:
    """Holds pages of prompts; prompts of different salts share none."""

    def __init__(self, tokens, page_tokens):
        self._tokens, self._page_tokens = tokens, page_tokens
        self._clock = count(1)
        self._events = []
        self.clear()

    def clear(self):
        self._roots = {}
        self._held = 0
        self._record({"type": "AllBlocksCleared"})

    def take_events(self):
        events, self._events = self._events, []
        return events

    def compute(self, prompt, answer, salt, session_id):
        # The last token of a prompt is computed in any case; that of an answer never.
        matched = self._match(self._paged(prompt[:-1]), salt)
        whole = self._paged([*prompt, *answer[:-1]])
        path = self._match(whole, salt)
        cached = sum(len(node.pages) for node in matched) * self._page_tokens
        pages = whole[sum(len(node.pages) for node in path) :]
        missing = len(prompt) + len(answer) - cached
        self._evict(self._held + missing - self._tokens, kept=path)
        if pages:
            self._insert(path[-1] if path else self._root(salt), pages, salt, session_id)
        return cached

    def _root(self, salt):
        return self._roots.setdefault(salt, _Node(None, (), ()))

    def _paged(self, token_ids):
        size = self._page_tokens
        return [tuple(token_ids[end - size : end]) for end in range(size, len(token_ids) + 1, size)]

    def _match(self, pages, salt):
        """Return the nodes that lead to the end of what is cached, where one is split if need be."""
        node, path = self._root(salt), []
        while pages and (child := node.children.get(pages[0])) is not None:
            shared = 0
            while shared < min(len(pages), len(child.pages)) and pages[shared] == child.pages[shared]:
                shared += 1
            if shared < len(child.pages):
                upper = _Node(node, child.pages[:shared], child.hashes[:shared])
                node.children[pages[0]] = upper
                child.parent, child.pages, child.hashes = upper, child.pages[shared:], child.hashes[shared:]
                upper.children[child.pages[0]] = child
                child = upper
            child.used = next(self._clock)
            node, pages = child, pages[shared:]
            path.append(child)
        return path

    def _insert(self, parent, pages, salt, session_id):
        above, hashes = parent.hashes[-1] if parent.hashes else None, []
        for page in pages:
            hashes.append(_signed_hash([salt, above, page]))
            self._record(
                {
                    "type": "BlockStored",
                    "block_hashes": [hashes[-1]],
                    "parent_block_hash": above,
                    "token_ids": [*page],
                    "block_size": self._page_tokens,
                    "lora_id": None,
                    "medium": "GPU",
                    **({} if salt is None else {"cache_salt": salt}),
                    **({} if session_id is None else {"session_id": session_id}),
                }
            )
            above = hashes[-1]
        node = parent.children[pages[0]] = _Node(parent, tuple(pages), tuple(hashes))
        node.used = next(self._clock)
        self._held += len(pages) * self._page_tokens

    def _evict(self, tokens, kept):
        while tokens > 0:
            nodes, leaves = [*self._roots.values()], []
            for node in nodes:
                nodes.extend(node.children.values())
                if node.parent is not None and not node.children and node not in kept:
                    leaves.append(node)
            leaf = min(leaves, key=lambda node: node.used)
            del leaf.parent.children[leaf.pages[0]]
            self._held -= len(leaf.pages) * self._page_tokens
            tokens -= len(leaf.pages) * self._page_tokens
            self._record({"type": "BlockRemoved", "block_hashes": [*leaf.hashes], "medium": "GPU"})

    def _record(self, event):
        """Queue an event, merged into the one before it where the two go on."""
        last = self._events[-1] if self._events else {"type": None}
        same = last["type"] == event["type"]
        if same and event["type"] == "BlockRemoved":
            last["block_hashes"] += event["block_hashes"]
        elif same and event.get("parent_block_hash") == last.get("block_hashes", [None])[-1] is not None:
            last["block_hashes"] += event["block_hashes"]
            last["token_ids"] += event["token_ids"]
        else:
            self._events.append(event)


def _signed_hash(content):
    digest = hashlib.sha256(msgspec.msgpack.encode(content)).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):  # The client hung up, as it may.
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        engine = self.server.engine
        if self.path == "/v1/models":
            card = {"id": engine.model, "object": "model", "created": 0, "owned_by": "sglang"}
            card |= {"root": engine.model, "parent": None, "max_model_len": engine.tokens}
            self._answer(200, {"object": "list", "data": [card]})
        elif self.path == "/server_info":
            info = {"max_total_num_tokens": engine.tokens, "page_size": engine.page_tokens}
            self._answer(200, {**info, "version": "0.5.23"})
        else:
            self._answer(404, {"detail": "Not Found"})

    def do_POST(self):
        engine = self.server.engine
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path == "/flush_cache":
            engine.flush()
            self._answer(200, "Cache flushed.\n")
        elif self.path == "/tokenize":
            engine.asked_to_tokenize += 1
            engine.tokenizing_waits.wait()
            tokens = _templated(body["messages"])
            content = {"tokens": tokens, "count": len(tokens), "max_model_len": engine.tokens}
            self._answer(*(engine.tokenizing or (200, content)))
        elif self.path == "/v1/chat/completions":
            engine.bodies.append(body)
            if engine.failures:
                engine.failures -= 1
                self._answer(503, {"error": {"message": "overloaded"}})
            else:
                self._complete(engine, body)
        else:
            self._answer(404, {"detail": "Not Found"})

    def _complete(self, engine, body):
        token_ids = [*engine.prefix, *_templated(body["messages"])]
        cached = engine.compute(token_ids, body.get("cache_salt"), body.get("session_id"))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        head = {"id": body.get("rid") or "own", "object": "chat.completion.chunk", "created": 0, "model": "m"}
        for delta, reason in (({"role": "assistant", "content": ""}, None), ({"content": _ANSWER}, "stop")):
            self._event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
        prompt, answer = len(token_ids), len(tokenize(_ANSWER))
        usage = {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}
        usage |= {"prompt_tokens_details": {"cached_tokens": cached}}
        self._event({**head, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, content):
        self.wfile.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    def _answer(self, status, content):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _templated(messages):
    turns = [f"<{message['role']}>\n{message['content']}\n" for message in messages]
    return tokenize("".join([*turns, "<assistant>\n"]))
