"""``<document>`` elements, alone or within ``<documents>``.

They come in texts that nobody has checked, so no XML parser reads them: a tag is found by its form, and
where tags do not pair, nothing is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from contextpilot_integrations.recognition.blocks import Form, Found
from contextpilot_integrations.recognition.claims import LONGEST_NAME, Claim, shortened

__all__ = ["xml_documents"]

# No value holds a "<", as in XML, so that none is read twice.
_TAG = re.compile(
    r"""<(?P<close>/?)document(?P<many>s?)(?P<attributes>(?:\s(?:[^<>"']|"[^"<]*"|'[^'<]*')*+)?)>"""
)
_ATTRIBUTE = re.compile(r"""\s(id|source|title|name|index)\s*=\s*(?:"([^"]+)"|'([^']+)')""")
_CONTENT_START = re.compile(r"\s*+(?:<source>(?P<source>[^<]*+)</source>\s*+)?<document_content>")
_CONTENT_END = "</document_content>"
_ROW_END = re.compile(r"[ \t\r]*(?:\n|\Z|</?documents?[\s>])")
_NAMING = ("id", "source", "title", "name", "index")


def xml_documents(text: str) -> Iterator[Claim]:
    """Yield the elements that hold no other, the first of a row at the beginning of a line.

    A text may show such tags itself. Where a tag is left over, or words follow one in the same line and then
    more tags, it is not known which tag ends what: all that may be concerned, and what stands behind it, is
    yielded as one block without end. But a closing tag at the end of a line is taken for what it looks like.
    """
    if "<document" not in text:
        return
    tags = [tag for tag in _TAG.finditer(text) if not tag["attributes"].endswith("/")]
    claims: list[Claim] = []
    place = 0
    mentioned = 0  # How many opening tags stand within lines and are not closed yet.
    in_row = False  # Whether the tag before is part of a row that begins a line.
    while place < len(tags):
        tag = tags[place]
        before = text[tags[place - 1].end() if place else 0 : tag.start()]
        _, line_end, indent = before.rpartition("\n")
        in_row = not indent.strip() and (line_end == "\n" or place == 0 or in_row)
        if tag["many"] or tag["close"] or not in_row:
            in_row = in_row and not tag["close"]
            if not tag["many"]:
                mentioned += -1 if tag["close"] else 1
            if mentioned < 0 and claims:
                yield Claim(Form.XML, claims[0].start, len(text), None)
                return
            mentioned = max(mentioned, 0)
            place += 1
            continue
        after, depth = _after_element(tags, place)
        last = tags[after - 1]
        start, end = tag.start(), last.end()
        if depth == 0 and (after == len(tags) or _ROW_END.match(text, end)):
            holds_others = after > place + 2
            claims.append(Claim(Form.XML, start, end, None if holds_others else _found(text, tag, last)))
        else:
            whole = depth >= 0 or not claims
            yield from claims if whole else ()
            yield Claim(Form.XML, start if whole else claims[0].start, len(text), None)
            return
        in_row = bool(last["close"] and not last["many"])
        place = after
    yield from claims


def _after_element(tags: list[re.Match[str]], place: int) -> tuple[int, int]:
    """Pass over an element, all that it holds, and closing tags that close nothing.

    Returns:
        Which tag follows; and how many are left open, or below 0, how many closed nothing.
    """
    depth = 0
    for after in range(place, len(tags)):
        if not tags[after]["many"]:
            depth += -1 if tags[after]["close"] else 1
        closes_more = after + 1 < len(tags) and tags[after + 1]["close"] and not tags[after + 1]["many"]
        if depth <= 0 and not closes_more:
            return after + 1, depth
    return len(tags), depth


def _found(text: str, opening: re.Match[str], closing: re.Match[str]) -> Found:
    start, end = opening.end(), closing.start()
    names = {kind: double or single for kind, double, single in _ATTRIBUTE.findall(opening["attributes"])}
    if content := _CONTENT_START.match(text, start, end):
        inner = text[content.end() : end].rstrip()
        if inner.endswith(_CONTENT_END):
            start, end = content.end(), content.end() + len(inner) - len(_CONTENT_END)
            if content["source"]:
                names.setdefault("source", content["source"].strip())
    text_start, text_end = shortened(text, start, end)
    return Found(opening.start(), closing.end(), text_start, text_end, _name(names))


def _name(names: dict[str, str]) -> str:
    for kind in _NAMING:
        name = names.get(kind, "")
        if name and len(name) <= LONGEST_NAME and name.isprintable():
            return f"document {name}" if kind == "index" else f'{kind} "{name}"'
    return ""
