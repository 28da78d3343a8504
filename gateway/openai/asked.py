"""Bodies of the OpenAI routes, parsed and checked: every refusal names the parameter. Pure; knows no model.

Unknown fields are ignored, as clients send fields of other servers (`user` is one of OpenAI's own).

Source: OpenAI API reference "Create embeddings"; Cohere and Jina "Rerank"; vLLM "Score API".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

import msgspec

from gateway.openai.errors import ApiRefused

MAX_INPUTS: Final = 2048
"""Inputs of one call, and documents of one rerank call; OpenAI's own limit."""
MAX_TOKENS: Final = 131_072
"""Of one input; no embedding model reads more, and looking at each takes time that others wait."""
MAX_DIMENSIONS: Final = 2**31 - 1
_FIELD: Final = re.compile(r"`\$\.(\w+)")
_MISSING: Final = re.compile(r"required field `(\w+)`")
T = TypeVar("T")

Texts = list[str]
TokenArrays = list[list[int]]
Inputs = Texts | TokenArrays


class EmbeddingsJson(msgspec.Struct):
    """Body of `POST /v1/embeddings`."""

    model: str
    input: Any
    encoding_format: str | None = None
    dimensions: int | None = None


class RerankJson(msgspec.Struct):
    """Body of `POST /v1/rerank`."""

    model: str
    query: str
    documents: list[Any]
    top_n: int | None = None
    return_documents: bool | None = None


class ScoreJson(msgspec.Struct):
    """Body of `POST /v1/score`."""

    model: str
    text_1: Any
    text_2: Any


@dataclass(frozen=True, slots=True)
class EmbeddingsAsked:
    """What a call for embeddings wants."""

    model: str
    inputs: Inputs
    is_single: bool
    """The input was not a list of inputs: errors then name no index."""
    encoding: Literal["float", "base64"]
    dimensions: int | None

    def name(self, index: int) -> str:
        """An input, as errors call it."""
        return "input" if self.is_single else f"input[{index}]"


@dataclass(frozen=True, slots=True)
class RerankAsked:
    """What a rerank call wants; the query goes first among the texts."""

    model: str
    query: str
    documents: Texts
    top_n: int
    returns_documents: bool

    @property
    def texts(self) -> Texts:
        """Everything to embed."""
        return [self.query, *self.documents]

    @staticmethod
    def name(index: int) -> str:
        """One of `texts`, as errors call it."""
        return "query" if index == 0 else f"documents[{index - 1}]"


@dataclass(frozen=True, slots=True)
class ScoreAsked:
    """Pairs of texts: as many as `second`; a single `first` goes with each."""

    model: str
    first: Texts
    second: Texts

    @property
    def texts(self) -> Texts:
        """Everything to embed."""
        return [*self.first, *self.second]

    def name(self, index: int) -> str:
        """One of `texts`, as errors call it."""
        num_first = len(self.first)
        return f"text_1[{index}]" if index < num_first else f"text_2[{index - num_first}]"


def embeddings_asked(body: bytes | bytearray) -> EmbeddingsAsked:
    """Raises ApiRefused."""
    found = _parse(body, EmbeddingsJson)
    encoding = found.encoding_format or "float"
    if encoding not in ("float", "base64"):
        raise ApiRefused(f"encoding_format is {encoding[:64]!r}, it must be 'float' or 'base64'", "encoding_format")
    if found.dimensions is not None and not 1 <= found.dimensions <= MAX_DIMENSIONS:
        raise ApiRefused(f"dimensions is {found.dimensions}, it must be at least 1", "dimensions")
    inputs, is_single = _inputs(found.input)
    wanted: Literal["float", "base64"] = "base64" if encoding == "base64" else "float"
    return EmbeddingsAsked(_model(found.model), inputs, is_single, wanted, found.dimensions)


def rerank_asked(body: bytes | bytearray) -> RerankAsked:
    """Raises ApiRefused."""
    found = _parse(body, RerankJson)
    if not found.query:
        raise ApiRefused("query is an empty string", "query")
    documents = [_document(index, document) for index, document in enumerate(_bounded(found.documents, "documents"))]
    if found.top_n is not None and found.top_n < 1:
        raise ApiRefused(f"top_n is {found.top_n}, it must be at least 1", "top_n")
    top_n = min(found.top_n or len(documents), len(documents))
    return RerankAsked(_model(found.model), found.query, documents, top_n, bool(found.return_documents))


def score_asked(body: bytes | bytearray) -> ScoreAsked:
    """Raises ApiRefused."""
    found = _parse(body, ScoreJson)
    first, second = _texts(found.text_1, "text_1"), _texts(found.text_2, "text_2")
    if len(first) not in (1, len(second)):
        raise ApiRefused(
            f"text_1 has {len(first)} texts and text_2 {len(second)}: text_1 must be one text, or as many as text_2",
            "text_1",
        )
    return ScoreAsked(_model(found.model), first, second)


def _parse(body: bytes | bytearray, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as e:
        named = _MISSING.search(str(e)) or _FIELD.search(str(e))
        raise ApiRefused(f"the request is not as it should be: {e}", named[1] if named else None) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise ApiRefused(f"the body is not JSON: {e}") from None


def _model(name: str) -> str:
    if not name:
        raise ApiRefused("model is an empty string", "model")
    return name


def _inputs(value: Any) -> tuple[Inputs, bool]:
    """The inputs, and whether the value was one input and no list of them."""
    if isinstance(value, str):
        return [_text(value, "input", "input")], True
    if not isinstance(value, list):
        raise ApiRefused(f"input is {_kind(value)}, it must be a string, or a list of strings or of tokens", "input")
    if value and type(value[0]) is int:
        return [_tokens(value, "input")], True
    _bounded(value, "input")
    if isinstance(value[0], list):
        return [_tokens(item, f"input[{index}]") for index, item in enumerate(value)], False
    return [_text(item, "input", f"input[{index}]") for index, item in enumerate(value)], False


def _texts(value: Any, param: str) -> Texts:
    if isinstance(value, str):
        return [_text(value, param, param)]
    if not isinstance(value, list):
        raise ApiRefused(f"{param} is {_kind(value)}, it must be a string or a list of strings", param)
    return [_text(item, param, f"{param}[{index}]") for index, item in enumerate(_bounded(value, param))]


def _document(index: int, value: Any) -> str:
    found = value.get("text") if isinstance(value, dict) else value
    return _text(found, "documents", f"documents[{index}]")


def _text(value: Any, param: str, name: str) -> str:
    if not isinstance(value, str):
        raise ApiRefused(f"{name} is {_kind(value)}, it must be a string", param)
    if not value:
        raise ApiRefused(f"{name} is an empty string", param)
    return value


def _tokens(value: Any, name: str) -> list[int]:
    if not isinstance(value, list):
        raise ApiRefused(f"{name} is {_kind(value)}, it must be a list of tokens like the others", "input")
    if not value:
        raise ApiRefused(f"{name} is an empty list", "input")
    if len(value) > MAX_TOKENS:
        raise ApiRefused(f"{name} has {len(value)} tokens, at most {MAX_TOKENS} are taken", "input")
    for token in value:
        if type(token) is not int or not 0 <= token < 2**31:
            what = token if type(token) is int else _kind(token)
            raise ApiRefused(f"{name} holds {what}, which is no token", "input")
    return value


def _bounded(values: Sequence[Any], param: str) -> Sequence[Any]:
    if not values:
        raise ApiRefused(f"{param} is an empty list", param)
    if len(values) > MAX_INPUTS:
        raise ApiRefused(f"{param} has {len(values)} items, at most {MAX_INPUTS} are taken", param)
    return values


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value)) or ("an object" if isinstance(value, dict) else "a list of other things")
