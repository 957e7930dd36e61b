"""Embeddings that need no model: a text is the words that it holds, the same everywhere."""

from collections import Counter
from zlib import crc32

from langchain_core.embeddings import Embeddings

DIMENSION = 256


class WordEmbeddings(Embeddings):
    """Counts words into places, and its own calls by method and number of texts."""

    def __init__(self):
        self.calls = []

    def embed_documents(self, texts):
        self.calls.append(("embed_documents", len(texts)))
        return [self.vector(text) for text in texts]

    def embed_query(self, text):
        self.calls.append(("embed_query", 1))
        return self.vector(text)

    async def aembed_documents(self, texts):
        self.calls.append(("aembed_documents", len(texts)))
        return [self.vector(text) for text in texts]

    async def aembed_query(self, text):
        self.calls.append(("aembed_query", 1))
        return self.vector(text)

    def vector(self, text):
        vector = [0.0] * DIMENSION
        for word, count in Counter(text.lower().split()).items():
            vector[crc32(word.encode("utf-8", "surrogatepass")) % DIMENSION] += count
        return vector


class PrefixedEmbeddings(WordEmbeddings):
    """Writes another prefix before queries than before documents, as some models want it."""

    def embed_query(self, text):
        return super().embed_query(f"query: {text}")

    async def aembed_query(self, text):
        return await super().aembed_query(f"query: {text}")
