import asyncio
import os
import uuid

import pytest

pytest.importorskip("langchain_core")
pytest.importorskip("elasticsearch")

from elasticsearch_stand_in import search_server

from contextpilot_integrations.retrievers.elasticsearch import ElasticsearchRetriever, connect, connect_async

API_KEY = os.environ.get("ELASTICSEARCH_API_KEY")


@pytest.fixture(scope="session")
def search_url():
    with search_server() as url:
        yield url


@pytest.fixture(scope="session")
def client(search_url):
    with connect(search_url, api_key=API_KEY) as client:
        yield client


@pytest.fixture
async def async_client(search_url):
    async with connect_async(search_url, api_key=API_KEY) as client:
        yield client


@pytest.fixture(scope="module")
def index(client):
    """The name of an index that is gone afterwards."""
    name = f"contextpilot-test-{uuid.uuid4().hex}"
    yield name
    client.indices.delete(index=name, ignore_unavailable=True)


@pytest.fixture
def fresh_index(client):
    name = f"contextpilot-test-{uuid.uuid4().hex}"
    yield name
    client.indices.delete(index=name, ignore_unavailable=True)


@pytest.fixture
def retriever(client, async_client, index):
    return ElasticsearchRetriever(client=client, async_client=async_client, index=index)


@pytest.fixture
def requests(caplog):
    """What reaches the server, as "METHOD path", of the clients' own log."""
    caplog.set_level("INFO", logger="elastic_transport.transport")

    def seen():
        lines = [
            record.getMessage() for record in caplog.records if record.name == "elastic_transport.transport"
        ]
        return [f"{line.split()[0]} /{line.split()[1].split('/', 3)[3]}" for line in lines]

    return seen


@pytest.fixture(params=["sync", "async"])
def either(request):
    """Call a method on the sync side, or its twin on the async side."""

    async def call(target, method, *args, **kwargs):
        if request.param == "sync":
            return await asyncio.to_thread(getattr(target, method), *args, **kwargs)
        return await getattr(target, f"a{method}")(*args, **kwargs)

    return call
