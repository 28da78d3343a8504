"""Where in a config's text the field stands that a refusal names. Finds words and braces; judges no value.

    "input[1].reshape = …", "output 'Y': dims …", "parameters['retry'] = …"   →   line and column, or None

protobuf's parser keeps no positions of what it has read, and that a value can't be honoured shows only afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_SEARCHED_BYTES: Final = 256 * 1024
"""A longer config is refused without a position; twenty times the largest that we know."""
_STEP: Final = re.compile(
    r"([a-z][a-z_0-9]*)(?:\[([0-9]+)\]|\['([^']*)'\]| '([^']*)')?(?:\.|: (?=[a-z_]+ = |dims|reshape))?"
)
_TOKEN: Final = re.compile(r"""#[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[A-Za-z_][A-Za-z_0-9]*|[{}<>\[\]]|\S""")
_OPEN: Final = {"{": "}", "<": ">", "[": "]"}


class _Step(NamedTuple):
    """One name of a path, and which of several it is: by number, or by what stands in it."""

    name: str
    number: int = 0
    key: str = ""


class _Token(NamedTuple):
    text: str
    at: int


class _Place(NamedTuple):
    """One value of a field: where it shows, and the tokens between its braces."""

    at: int
    inner: tuple[int, int]


def position_of(sentence: str, text: str) -> tuple[int, int] | None:
    """Line and column, from 1, of the deepest field of the path that `sentence` begins with and `text` has."""
    tokens = [_Token(m[0], m.start()) for m in _TOKEN.finditer(text) if not m[0].startswith("#")]
    span, found = (0, len(tokens)), -1
    for step in _path(sentence):
        places = _places(tokens, span, step.name)
        if step.key:
            places = [p for p in places if _has_string(tokens, p.inner, step.key)]
        if step.number >= len(places):
            break
        found, span = places[step.number]
    if found < 0:
        return None
    return text.count("\n", 0, found) + 1, found - text.rfind("\n", 0, found)


def _path(sentence: str) -> list[_Step]:
    steps: list[_Step] = []
    at = 0
    while match := _STEP.match(sentence, at):
        steps.append(_Step(match[1], int(match[2] or 0), match[3] or match[4] or ""))
        at = match.end()
        if sentence[at - 1] not in ".:" and sentence[at - 2 : at] != ": ":
            break
    return steps


def _places(tokens: Sequence[_Token], span: tuple[int, int], name: str) -> list[_Place]:
    """Every value of the field `name` directly in `span`, in order; `name [ {…}, {…} ]` are two."""
    places: list[_Place] = []
    at, end = span
    while at < end:
        if tokens[at].text in _OPEN:
            at = _close(tokens, at, end) + 1
            continue
        if tokens[at].text == name:
            value = at + 1 + (at + 1 < end and tokens[at + 1].text == ":")
            places += _values(tokens, at, value, end)
        at += 1
    return places


def _values(tokens: Sequence[_Token], name: int, value: int, end: int) -> list[_Place]:
    shows = tokens[name].at
    if value >= end or tokens[value].text not in _OPEN:
        return [_Place(shows, (value, value))]
    close = _close(tokens, value, end)
    if tokens[value].text != "[":
        return [_Place(shows, (value + 1, close))]
    places = []
    at = value + 1
    while at < close:
        if tokens[at].text in _OPEN:
            inner_close = _close(tokens, at, close)
            places.append(_Place(tokens[at].at, (at + 1, inner_close)))
            at = inner_close
        at += 1
    return places or [_Place(shows, (value, value))]


def _close(tokens: Sequence[_Token], opened: int, end: int) -> int:
    """Where the brace at `opened` is closed; `end` if nowhere."""
    depth = 0
    for at in range(opened, end):
        depth += (tokens[at].text in _OPEN) - (tokens[at].text in _OPEN.values())
        if depth == 0:
            return at
    return end


def _has_string(tokens: Sequence[_Token], span: tuple[int, int], key: str) -> bool:
    return any(tokens[at].text[1:-1] == key for at in range(*span) if tokens[at].text[0] in "\"'")
