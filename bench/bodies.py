"""The request files that the load generator sends: the same values for every stack, in each stack's own form.

minilm rows are real token counts over random word-piece ids from a fixed seed; lengths log-uniform where they vary.
"""

import json
import math
import random
import struct
from pathlib import Path

import numpy as np

VOCABULARY = range(1000, 29_000)
NUM_ROWS = 64


def lengths(low, high, seed=7):
    """NUM_ROWS token counts, log-uniform between `low` and `high`, both included."""
    rng = random.Random(seed)
    return [round(math.exp(rng.uniform(math.log(low), math.log(high)))) for _ in range(NUM_ROWS)]


def minilm_rows(token_counts, seed=11):
    """One row per token count: ids and mask as lists."""
    rng = random.Random(seed)
    return [
        {"input_ids": [101, *(rng.choice(VOCABULARY) for _ in range(n - 2)), 102], "attention_mask": [1] * n}
        for n in token_counts
    ]


def add_sub_rows(seed=3):
    """Rows of two times 16 floats with two decimals."""
    rng = random.Random(seed)
    return [
        {k: [round(rng.uniform(-9, 9), 2) for _ in range(16)] for k in ("INPUT0", "INPUT1")} for _ in range(NUM_ROWS)
    ]


def plain(path, row):
    """A flat JSON object, as the peers take it."""
    return _http(path, json.dumps(row).encode(), "Content-Type: application/json")


def oip_json(path, row, datatype):
    """KServe v2 JSON, one row."""
    inputs = [{"name": k, "shape": [1, len(v)], "datatype": datatype, "data": v} for k, v in row.items()]
    return _http(path, json.dumps({"inputs": inputs}).encode(), "Content-Type: application/json")


def oip_text(path, text):
    """KServe v2 JSON, one text in one row."""
    tensor = {"name": "text", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return _http(path, json.dumps({"inputs": [tensor]}).encode(), "Content-Type: application/json")


def oip_binary(path, row, dtype, datatype):
    """KServe v2 with the binary extension both ways, one row."""
    raw = [np.asarray(v, dtype).tobytes() for v in row.values()]
    inputs = [
        {"name": k, "shape": [1, len(v)], "datatype": datatype, "parameters": {"binary_data_size": len(r)}}
        for (k, v), r in zip(row.items(), raw, strict=True)
    ]
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return _http(
        path,
        head + b"".join(raw),
        "Content-Type: application/octet-stream",
        f"Inference-Header-Content-Length: {len(head)}",
    )


def write(file: Path, requests):
    """The load generator's rotation file."""
    file.write_bytes(b"".join(struct.pack("<I", len(r)) + r for r in requests))


def _http(path, body, *headers):
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body
