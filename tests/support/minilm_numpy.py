"""MiniLM's forward pass for one text in numpy and double precision: slow, short, written apart from the graph."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

NUM_HEADS = 12
erf = np.vectorize(math.erf)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        body = file.read()
    header.pop("__metadata__", None)
    dtypes = {"F32": "<f4", "I64": "<i8"}
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], dtypes[entry["dtype"]]).reshape(entry["shape"])
        for name, entry in header.items()
    }


def embed(weights: dict[str, np.ndarray], ids: np.ndarray) -> np.ndarray:
    """Sentence embedding [384] of token ids [s], no padding."""
    h = (
        weights["embeddings.word_embeddings.weight"][ids].astype(np.float64)
        + weights["embeddings.position_embeddings.weight"][: len(ids)]
        + weights["embeddings.token_type_embeddings.weight"][0]
    )
    h = layer_norm(weights, "embeddings.LayerNorm", h)
    for index in range(6):
        h = layer(weights, f"encoder.layer.{index}", h)
    mean = h.mean(axis=0)
    return mean / np.linalg.norm(mean)


def layer(weights: dict[str, np.ndarray], name: str, h: np.ndarray) -> np.ndarray:
    q, k, v = (linear(weights, f"{name}.attention.self.{part}", h) for part in ("query", "key", "value"))
    heads = []
    for qh, kh, vh in zip(*(np.split(part, NUM_HEADS, axis=1) for part in (q, k, v)), strict=True):
        scores = qh @ kh.T / math.sqrt(qh.shape[1])
        raised = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(raised / raised.sum(axis=1, keepdims=True) @ vh)
    attended = linear(weights, f"{name}.attention.output.dense", np.concatenate(heads, axis=1))
    h = layer_norm(weights, f"{name}.attention.output.LayerNorm", h + attended)
    wide = linear(weights, f"{name}.intermediate.dense", h)
    gelu = wide * 0.5 * (1 + erf(wide / math.sqrt(2)))
    return layer_norm(weights, f"{name}.output.LayerNorm", h + linear(weights, f"{name}.output.dense", gelu))


def linear(weights: dict[str, np.ndarray], name: str, h: np.ndarray) -> np.ndarray:
    return h @ weights[f"{name}.weight"].T.astype(np.float64) + weights[f"{name}.bias"]


def layer_norm(weights: dict[str, np.ndarray], name: str, h: np.ndarray) -> np.ndarray:
    centred = h - h.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]
