"""A whole-file JSON list, `[...]` or `{"data": [...]}`: where its elements lie, one after the other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()
LISTS = ("data",)
"""Keys under which an API answers with a list of rows."""


def list_start(text: str) -> int | None:
    """Return the position after the `[` of the list that holds a file's rows; None if there is none.

    A first line that is an object by itself, with more lines after it, is of JSON lines.
    """
    start = _skip(text, 0)
    if text.startswith("[", start):
        return start + 1
    if not text.startswith("{", start) or is_lines(text):
        return None
    try:
        return _data_start(text, start + 1)
    except (ValueError, RecursionError):
        return None


def is_lines(text: str) -> bool:
    """Return whether the first line is JSON by itself, and not the only line."""
    start = _skip(text, 0)
    end = text.find("\n", start)
    if end < 0 or not text[end:].strip():
        return False
    try:
        _DECODER.decode(text[start:end].strip())
    except (ValueError, RecursionError):
        return False
    return True


def elements(text: str, start: int, decoder: json.JSONDecoder) -> Iterator[tuple[int, int, Any]]:
    """Yield begin, end and value of each element of the list whose `[` ends at `start`.

    Raises `json.JSONDecodeError` (a `ValueError`) at what is not JSON, also after the list.
    """
    place = _skip(text, start)
    while not text.startswith("]", place):
        value, end = decoder.raw_decode(text, place)
        yield place, end, value
        place = _skip(text, end)
        if text.startswith(",", place):
            place = _skip(text, place + 1)
            if text.startswith("]", place):
                raise json.JSONDecodeError("Expecting value", text, place)
        elif not text.startswith("]", place):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
    rest = text[place + 1 :]
    before = '{"data": []' if text.startswith("{", _skip(text, 0)) else "[]"
    try:
        _DECODER.decode(before + rest)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(error.msg, text, place + 1 + error.pos - len(before)) from error


def _data_start(text: str, place: int) -> int | None:
    """Return the position after the `[` of an object's list of rows; `place` is after the object's `{`."""
    while True:
        place = _skip(text, place)
        if not text.startswith('"', place):
            return None
        key, place = _DECODER.raw_decode(text, place)
        place = _skip(text, place)
        if not text.startswith(":", place):
            return None
        place = _skip(text, place + 1)
        if key in LISTS and text.startswith("[", place):
            return place + 1
        _, place = _DECODER.raw_decode(text, place)
        place = _skip(text, place)
        if not text.startswith(",", place):
            return None
        place += 1


def _skip(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return found.end() if found else place
