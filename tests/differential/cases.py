"""The requests that Headrace and MLServer are both asked: plain OIP JSON for a model that gives IN back as OUT."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

INTEGERS = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
FLOATS = ("FP16", "FP32", "FP64")


class Case(NamedTuple):
    """One request. `datatype` chooses our model, `flat_<datatype>` or, with rows, `ident_f32`; MLServer's takes all."""

    name: str
    datatype: str
    body: bytes

    @property
    def model(self) -> str:
        """Ours."""
        return "ident_f32" if self.name.startswith("matrix") else f"flat_{self.datatype.lower()}"


def _request(tensor: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"inputs": [{"name": "IN", **tensor}], **fields}).encode()


def _case(name: str, datatype: str, shape: Any, data: Any, **fields: Any) -> Case:
    return Case(name, datatype, _request({"shape": shape, "datatype": datatype, "data": data}, **fields))


def cases() -> Iterator[Case]:
    """All of them; names are unique."""
    yield from _values()
    yield from _shapes()
    yield from _fields()
    yield from _malformed()


def _values() -> Iterator[Case]:
    for datatype in INTEGERS:
        bits, is_signed = int(datatype.lstrip("UINT")), datatype[0] == "I"
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if is_signed else (0, 2**bits - 1)
        yield _case(f"{datatype} ends", datatype, [3], [low, 1, high])
        yield _case(f"{datatype} above", datatype, [1], [high + 1])
        yield _case(f"{datatype} below", datatype, [1], [low - 1])
    for datatype in FLOATS:
        yield _case(f"{datatype} numbers", datatype, [4], [0.5, -1.25, 0, 1024])
        yield _case(f"{datatype} rounded", datatype, [2], [0.1, 1 / 3])
    yield _case("FP32 as integers", "FP32", [3], [1, 2, 3])
    yield _case("INT32 as floats", "INT32", [2], [1.0, 2.0])
    yield _case("INT32 as fractions", "INT32", [2], [1.5, 2.5])
    yield _case("INT32 as text", "INT32", [2], ["1", "2"])
    yield _case("FP32 as text", "FP32", [1], ["x"])
    yield _case("FP32 null", "FP32", [2], [None, 1])
    yield _case("BOOL", "BOOL", [3], [True, False, True])
    yield _case("BOOL as numbers", "BOOL", [2], [1, 0])
    for name, texts in (("plain", ["a", "bc", ""]), ("unicode", ["naïve", "日本語", "🙂", "a\u0000b"])):
        yield _case(f"BYTES {name}", "BYTES", [len(texts)], texts)
    yield _case("BYTES as numbers", "BYTES", [2], [1, 2])


def _shapes() -> Iterator[Case]:
    yield _case("one", "FP32", [1], [1])
    yield _case("too few values", "FP32", [3], [1, 2])
    yield _case("too many values", "FP32", [2], [1, 2, 3])
    yield _case("negative size", "FP32", [-1], [1, 2])
    for name, shape in (("text", "3"), ("null", None), ("object", {}), ("fraction", [1.5]), ("texts", ["x"])):
        yield _case(f"shape is {name}", "FP32", shape, [1])
    yield Case("no shape", "FP32", _request({"datatype": "FP32", "data": [1]}))
    yield _case("matrix flat", "FP32", [2, 3], [1, 2, 3, 4, 5, 6])
    yield _case("matrix nested", "FP32", [2, 3], [[1, 2, 3], [4, 5, 6]])
    yield _case("matrix of one row", "FP32", [1, 2], [[0.5, 0.25]])
    yield _case("matrix with a short row", "FP32", [2, 2], [[1, 2], [3]])
    yield _case("matrix nested too deep", "FP32", [1, 2], [[[1, 2]]])
    yield _case("matrix nested the other way", "FP32", [2, 3], [[1, 2], [3, 4], [5, 6]])
    yield _case("matrix half nested", "FP32", [2, 2], [[1, 2], 3, 4])
    yield _case("empty", "FP32", [0], [])


def _fields() -> Iterator[Case]:
    yield _case("id", "FP32", [1], [1], id="mine")
    yield _case("id of unicode", "FP32", [1], [1], id="日本語 🙂")
    yield _case("id null", "FP32", [1], [1], id=None)
    yield _case("id a number", "FP32", [1], [1], id=5)
    yield _case("unknown field", "FP32", [1], [1], nobody={"a": [1]})
    yield _case("own parameter", "FP32", [1], [1], parameters={"temperature": 0.5})
    yield _case("parameters null", "FP32", [1], [1], parameters=None)
    yield _case("parameters a list", "FP32", [1], [1], parameters=[1])
    yield _case("outputs by name", "FP32", [1], [1], outputs=[{"name": "OUT"}])
    yield _case("outputs null", "FP32", [1], [1], outputs=None)
    yield _case("outputs without name", "FP32", [1], [1], outputs=[{}])


def _malformed() -> Iterator[Case]:
    bodies = {
        "empty body": b"",
        "no JSON": b"{",
        "an array": b"[]",
        "a number": b"42",
        "null": b"null",
        "no inputs": b"{}",
        "inputs null": b'{"inputs":null}',
        "inputs an object": b'{"inputs":{}}',
        "inputs of numbers": b'{"inputs":[1]}',
        "no UTF-8": b'{"inputs":"\xff"}',
        "deep": b'{"inputs":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    }
    for name, body in bodies.items():
        yield Case(name, "FP32", body)
    yield Case("no name", "FP32", b'{"inputs":[{"shape":[1],"datatype":"FP32","data":[1]}]}')
    yield Case("no datatype", "FP32", _request({"shape": [1], "data": [1]}))
    yield Case("unknown datatype", "FP32", _request({"shape": [1], "datatype": "FLOAT", "data": [1]}))
    yield Case("no data", "FP32", _request({"shape": [1], "datatype": "FP32"}))
