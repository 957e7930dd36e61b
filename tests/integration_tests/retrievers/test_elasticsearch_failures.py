"""What goes wrong with a server, told by what to do about it. The server here refuses everything."""

import json
import logging
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from langchain_core.documents import Document
from pydantic import SecretStr

from contextpilot_integrations.retrievers.elasticsearch import ElasticsearchRetriever, connect, connect_async

SECRET = "c2VjcmV0LWtleQ=="


class Refusing(ThreadingHTTPServer):
    """Answers every request with the same status and body, and keeps what it was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body, self.product = 200, {}, "Elasticsearch"
        self.release = threading.Event()
        self.release.set()
        self.asked, self.bodies, self.authorizations = [], [], []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def do_GET(self):
        self.server.bodies.append(self.rfile.read(int(self.headers.get("content-length") or 0)).decode())
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.authorizations.append(self.headers.get("authorization"))
        self.server.release.wait(30)
        body = json.dumps(self.server.body).encode()
        self.send_response(self.server.status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if self.server.product:
            self.send_header("x-elastic-product", self.server.product)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_PUT = do_HEAD = do_GET

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    with Refusing() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


@pytest.fixture
async def retriever(server):
    settings = {"api_key": SecretStr(SECRET), "max_retries": 0}
    with connect(server.url, **settings) as client:
        async with connect_async(server.url, **settings) as async_client:
            yield ElasticsearchRetriever(client=client, async_client=async_client, index="handbook")


def error(kind, reason="a reason"):
    return {"error": {"type": kind, "reason": reason, "root_cause": [{"type": kind, "reason": reason}]}}


CASES = [
    (
        401,
        error("security_exception"),
        PermissionError,
        r"does not accept the credentials \(401\).*api_key or basic",
    ),
    (
        403,
        error("security_exception"),
        PermissionError,
        r"do not allow this on index 'handbook'.*\(403\): grant",
    ),
    (404, error("index_not_found_exception"), LookupError, r"no index 'handbook'.*\(404\): correct its name"),
    (404, "<html>", LookupError, r"no such API \(404\): correct the path"),
    (413, {}, ValueError, r"too large.*\(413\): ask or add fewer"),
    (
        429,
        error("circuit_breaking_exception"),
        ConnectionError,
        r"overloaded \(429\): ask less.*circuit_breaking",
    ),
    (502, {}, ConnectionError, r"not available \(502\): wait"),
    (
        503,
        error("no_shard_available_action_exception"),
        ConnectionError,
        r"not available \(503\): wait.*no_shard",
    ),
    (
        400,
        error("media_type_header_exception"),
        ValueError,
        r"older than this client: install.*elasticsearch<9",
    ),
    (400, error("illegal_argument_exception", "k is large"), ValueError, r"as wrong \(400\).*k is large"),
    (500, error("null_pointer_exception"), RuntimeError, r"status 500 \(null_pointer_exception"),
]


@pytest.mark.parametrize(("status", "body", "kind", "message"), CASES)
async def test_each_status_says_what_to_do(server, retriever, either, status, body, kind, message):
    server.status, server.body = status, body
    for method, given in (("invoke", "question"), ("batch", ["one", "two"])):
        with pytest.raises(kind, match=message) as caught:
            await either(retriever, method, given)
        assert server.url in str(caught.value)
        assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"), [case for case in CASES if case[1] and case[1] != "<html>"]
)
async def test_a_part_of_a_batch_fails_alike(server, retriever, either, status, body, kind, message):
    good = {"hits": {"hits": []}, "status": 200}
    server.body = {"responses": [good, {**body, "status": status}]}
    found, failed = await either(retriever, "batch", ["one", "two"], return_exceptions=True)
    assert found == []
    with pytest.raises(kind, match=message):
        raise failed


async def test_half_an_answer_is_asked_for_never(server, retriever, either):
    server.body = {"hits": {"hits": []}, "responses": [{"hits": {"hits": []}}] * 2}
    await either(retriever, "invoke", "question")
    assert "allow_partial_search_results=false" in server.asked[0]
    await either(retriever, "batch", ["one", "two"])
    headers = [json.loads(line) for line in server.bodies[1].splitlines()][::2]
    assert headers == [{"allow_partial_search_results": False}] * 2


async def test_a_refused_document_is_told_without_its_content(server, retriever, either):
    reason = "failed to parse field [metadata.n]. Preview of field's value: 'secret'"
    cause = {"type": "number_format_exception", "reason": 'For input string: "secret"'}
    refused = {"type": "document_parsing_exception", "reason": reason, "caused_by": cause}
    server.body = {"errors": True, "items": [{"index": {"_id": "1", "status": 400, "error": refused}}]}
    with pytest.raises(
        ValueError, match=r"1 of 1 documents failed.*'1'.*parse field \[metadata\.n\]"
    ) as caught:
        await either(retriever, "add_documents", [Document("secret", id="1", metadata={"n": "secret"})])
    shown = f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"
    assert "secret" not in shown


async def test_what_is_no_elasticsearch(server, retriever, either):
    server.product = "OpenSearch"
    with pytest.raises(ValueError, match=r"is not Elasticsearch: correct the URL; OpenSearch"):
        await either(retriever, "invoke", "question")


async def test_nobody_there(server, either):
    url = server.url
    server.server_close()
    with connect(url, max_retries=0) as client:
        async with connect_async(url, max_retries=0) as async_client:
            retriever = ElasticsearchRetriever(client=client, async_client=async_client, index="handbook")
            for method, given in (("invoke", "question"), ("add_documents", [Document("text")])):
                with pytest.raises(
                    ConnectionError, match=f"cannot reach {url}: start the server, or correct"
                ):
                    await either(retriever, method, given)


async def test_no_answer_in_time(server, either):
    server.release.clear()
    settings = {"timeout": 0.2, "max_retries": 0}
    with connect(server.url, **settings) as client:
        async with connect_async(server.url, **settings) as async_client:
            retriever = ElasticsearchRetriever(client=client, async_client=async_client, index="handbook")
            with pytest.raises(TimeoutError, match=r"no answer .* in time: raise connect's timeout"):
                await either(retriever, "invoke", "question")


async def test_tls_where_there_is_none(server, either):
    url = server.url.replace("http:", "https:")
    with connect(url, max_retries=0) as client:
        async with connect_async(url, max_retries=0) as async_client:
            retriever = ElasticsearchRetriever(client=client, async_client=async_client, index="handbook")
            with pytest.raises(ConnectionError, match=r"ca_certs|scheme of the URL"):
                await either(retriever, "invoke", "question")


async def test_adding_says_it_too(server, retriever, either):
    server.status = 403
    with pytest.raises(PermissionError, match="create_index, write and view_index_metadata"):
        await either(retriever, "add_documents", [Document("text")])
    server.status = 401
    with pytest.raises(PermissionError, match="valid api_key"):
        await either(retriever, "delete", ["1"])


class TestRetries:
    async def test_what_can_pass_is_sent_again(self, server, either):
        server.status = 503
        with connect(server.url, max_retries=2) as client:
            async with connect_async(server.url, max_retries=2) as async_client:
                retriever = ElasticsearchRetriever(client=client, async_client=async_client, index="i")
                with pytest.raises(ConnectionError, match="503"):
                    await either(retriever, "invoke", "question")
        assert len(server.asked) == 3

    async def test_what_cannot_pass_is_not(self, server, retriever, either):
        for status in (400, 401, 403, 404):
            server.status, before = status, len(server.asked)
            with pytest.raises((ValueError, PermissionError, LookupError)):
                await either(retriever.with_retry(retry_if_exception_type=(ConnectionError,)), "invoke", "q")
            assert len(server.asked) == before + 1


class TestCredentials:
    async def test_they_are_sent(self, server, retriever, either):
        server.body = {"hits": {"hits": []}}
        await either(retriever, "invoke", "question")
        assert server.authorizations == [f"ApiKey {SECRET}"]

    def test_name_and_password(self, server):
        server.body = {"hits": {"hits": []}}
        with connect(server.url, basic_auth=("me", SecretStr("word"))) as client:
            ElasticsearchRetriever(client=client, index="i").invoke("question")
        assert server.authorizations == ["Basic bWU6d29yZA=="]

    async def test_they_are_shown_nowhere(self, server, retriever, either, caplog):
        caplog.set_level(logging.DEBUG)
        server.status = 401
        with pytest.raises(PermissionError) as caught:
            await either(retriever, "invoke", "question")
        shown = "".join(traceback.format_exception(caught.value))
        chain = f"{caught.value!r} {caught.value.__cause__!r} {retriever!r} {retriever.client!r}"
        assert SECRET not in shown + chain + caplog.text

    def test_what_is_refused(self):
        with pytest.raises(ValueError, match="must not hold credentials") as caught:
            connect("https://me:hidden@localhost:9200")
        assert "hidden" not in str(caught.value)
        with pytest.raises(ValueError, match="exclude each other"):
            connect_async("https://localhost:9200", api_key="a", basic_auth=("me", "b"))
        with pytest.raises(ValueError, match="timeout must be positive, got 0"):
            connect("https://localhost:9200", timeout=0)
        with pytest.raises(ValueError, match="max_retries must be at least 0, got -1"):
            connect_async("https://localhost:9200", max_retries=-1)
