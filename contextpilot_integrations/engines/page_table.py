"""The page table: which pages of which prompts an engine holds, told by its KV events.

An engine names a page by a hash of its own. What a page *is*, are its tokens and all that stands before it:
its prefix, here a digest chained from page to page, which a prompt's own token ids give too. Salts, adapters
and images are part of it, so prompts that an engine keeps apart are apart here.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from contextpilot_integrations.engines.kv_events import BlockHash, BlockRemoved, BlockStored

__all__ = ["PageTable", "Prompt"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine's prefix cache sees it.

    Args:
        token_ids: From 0 to 2**32 - 1 each, as the engine counts them, the chat template's included.
        salt: The cache salt it is sent with.
        lora: The adapter's name, or its number where it has none.
    """

    token_ids: Sequence[int]
    salt: str | None = None
    lora: str | int | None = None

    def prefixes(self, page_tokens: int) -> Iterator[bytes]:
        """Yield the prefix of each page of so many tokens (at least 1) that the prompt fills.

        Raises:
            OverflowError: If a token id is out of range.
        """
        prefix = _root(self.lora)
        keys: Sequence[object] = () if self.salt is None else (self.salt,)
        for end in range(page_tokens, len(self.token_ids) + 1, page_tokens):
            prefix = _extended(prefix, keys, self.token_ids[end - page_tokens : end])
            keys = ()
            yield prefix


@dataclass(slots=True, eq=False)
class _Page:
    """A page; ``copies`` are counted by medium, and are empty once they are in doubt."""

    hash: BlockHash
    rank: int
    prefix: bytes
    copies: dict[str | None, int] = field(default_factory=dict)


class PageTable:
    """What an engine holds, page by page. Takes no lock.

    A hash may be stored several times, in one medium or in several: a page is held until the last copy is
    removed. Of a model with several KV cache groups, group 0 is followed.

    Args:
        max_pages: How many pages are kept; a page takes about 600 bytes.

    Attributes:
        page_tokens: Tokens a page, as the first event said; None before.
        strangers: How many stored or removed pages could not be traced to the beginning of a prompt: their
            parent was never seen, or the event was none of group 0.

    Raises:
        ValueError: If ``max_pages`` is below 1.
    """

    def __init__(self, max_pages: int = 1_000_000) -> None:
        if max_pages < 1:
            raise ValueError(f"max_pages must be at least 1, got {max_pages}")
        self.max_pages = max_pages
        self.strangers = 0
        self.page_tokens: int | None = None
        self._pages: dict[tuple[int, BlockHash], _Page] = {}
        self._by_prefix: dict[bytes, list[_Page]] = {}

    def __len__(self) -> int:
        """Return the number of pages that are kept, those in doubt included."""
        return len(self._pages)

    def store(self, event: BlockStored, rank: int = 0) -> None:
        """Follow a `BlockStored` of this data-parallel rank.

        Raises:
            OverflowError: If there are more than ``max_pages`` pages now; the table is empty then.
        """
        size, count = event.block_size, len(event.block_hashes)
        if self.page_tokens is None and event.token_ids and size and not event.group_idx:
            self.page_tokens = size
        traceable = size == self.page_tokens and len(event.token_ids) == count * size
        prefix = self._prefix_before(event, rank) if traceable else None
        for place, block_hash in enumerate(event.block_hashes):
            page = self._pages.get((rank, block_hash))
            if prefix is not None:
                tokens = event.token_ids[place * size : (place + 1) * size]
                prefix = _extended(prefix, _keys(event, place), tokens)
                if page is None:
                    page = self._pages[rank, block_hash] = _Page(block_hash, rank, prefix)
                    self._by_prefix.setdefault(prefix, []).append(page)
            if page is None or event.group_idx:
                self.strangers += 1
            else:
                page.copies[event.medium] = page.copies.get(event.medium, 0) + 1
        if len(self._pages) > self.max_pages:
            self.clear()
            raise OverflowError(f"the engine holds more than {self.max_pages} pages")

    def remove(self, event: BlockRemoved, rank: int = 0) -> list[bytes]:
        """Follow a `BlockRemoved` of this data-parallel rank.

        Returns:
            The prefixes that no page holds any more, of any rank and in any medium.
        """
        gone = []
        for block_hash in event.block_hashes:
            page = self._pages.get((rank, block_hash))
            if page is None or event.group_idx or (page.copies and event.medium not in page.copies):
                self.strangers += 1
                continue
            left = page.copies.pop(event.medium, 1) - 1
            if left:
                page.copies[event.medium] = left
            if not page.copies:
                self._drop(page)
                if not any(twin.copies for twin in self._by_prefix.get(page.prefix, ())):
                    gone.append(page.prefix)
        return gone

    def clear(self, rank: int | None = None) -> None:
        """Forget all pages of a data-parallel rank; None: of all, and how large a page is."""
        if rank is None:
            self._pages.clear()
            self._by_prefix.clear()
            self.page_tokens = None
        else:
            for page in [page for page in self._pages.values() if page.rank == rank]:
                self._drop(page)

    def doubt(self) -> None:
        """Hold no page for certain, since events were missed, yet know its hash when it is named again."""
        for page in self._pages.values():
            page.copies.clear()

    def held_pages(self, prompt: Prompt, *, rank: int = 0, medium: str | None = None) -> list[BlockHash]:
        """Map a prompt to the pages that are held, up to the first that is not.

        Args:
            prompt: What would be sent.
            rank: The data-parallel rank that it would meet.
            medium: Where the pages have to lie; None: anywhere.

        Returns:
            Their hashes.

        Raises:
            OverflowError: If a token id is out of range.
        """
        hashes: list[BlockHash] = []
        for prefix in prompt.prefixes(self.page_tokens) if self.page_tokens else ():
            held = (
                page.hash
                for page in self._by_prefix.get(prefix, ())
                if page.rank == rank and (page.copies if medium is None else medium in page.copies)
            )
            if (block_hash := next(held, None)) is None:
                break
            hashes.append(block_hash)
        return hashes

    def cached_tokens(self, prompt: Prompt, *, rank: int = 0, medium: str | None = None) -> int:
        """Count a prompt's leading tokens that lie in pages held now; arguments as for `held_pages`.

        An engine computes the last token of a prompt in any case, and with it its page.
        """
        return len(self.held_pages(prompt, rank=rank, medium=medium)) * (self.page_tokens or 0)

    def _prefix_before(self, event: BlockStored, rank: int) -> bytes | None:
        if event.group_idx:
            return None
        if event.parent_block_hash is None:
            return _root(_lora(event))
        parent = self._pages.get((rank, event.parent_block_hash))
        return None if parent is None else parent.prefix

    def _drop(self, page: _Page) -> None:
        del self._pages[page.rank, page.hash]
        twins = self._by_prefix[page.prefix]
        twins.remove(page)
        if not twins:
            del self._by_prefix[page.prefix]


def _root(lora: str | int | None) -> bytes:
    """Return what stands before the first page of a prompt."""
    return hashlib.blake2b(msgspec.msgpack.encode(lora), digest_size=16).digest()


def _extended(prefix: bytes, keys: Sequence[object], token_ids: Sequence[int]) -> bytes:
    """Return the prefix of the page behind another one that has these tokens and depends on these keys."""
    digest = hashlib.blake2b(prefix, digest_size=16)
    digest.update(msgspec.msgpack.encode(keys))
    digest.update(array("I", token_ids).tobytes())
    return digest.digest()


def _lora(event: BlockStored) -> str | int | None:
    return event.lora_id if event.lora_name is None else event.lora_name


def _keys(event: BlockStored, place: int) -> Sequence[Hashable]:
    """Return what a page depends on beside its tokens, what stands before it, and its adapter."""
    keys = (event.extra_keys[place] if event.extra_keys and place < len(event.extra_keys) else None) or ()
    first = place == 0 and event.parent_block_hash is None
    salt = (event.cache_salt,) if first and event.cache_salt is not None else ()
    return salt + tuple(key for key in keys if key != event.lora_name)
