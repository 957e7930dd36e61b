import uuid

import pytest


def memory_of(name, text, **rest):
    """A memory in Mem0's form, under the id that the name always gets."""
    identity = str(uuid.uuid5(uuid.NAMESPACE_OID, name))
    return {"id": identity, "memory": text, "score": 0.5, "metadata": None, **rest}


class Store:
    """Finds what it was told to, in the shape of Mem0's search, and has a method of its own."""

    def __init__(self, *memories, **rest):
        self.found = {"results": [*memories], **rest}
        self.asked = []

    def search(self, query, *args, **kwargs):
        self.asked.append((query, args, kwargs))
        return self.found

    def of_a_later_version(self, *args, **kwargs):
        return self, args, kwargs


class AsyncStore(Store):
    async def search(self, query, *args, **kwargs):
        return super().search(query, *args, **kwargs)


@pytest.fixture
def memory():
    return memory_of


@pytest.fixture
def store():
    return Store


@pytest.fixture
def async_store():
    return AsyncStore
