"""Answers of the OpenAI routes: embeddings, scores, models. Pure.

Source: OpenAI API reference "The embedding object", "The model object"; Jina "Rerank"; vLLM "Score API".
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np
import orjson

from contract.tensors import Array
from gateway.openai.asked import RerankAsked

OWNER: Final = "headrace"


def cut_dimensions(vectors: Array, dimensions: int | None) -> Array:
    """The first so many numbers of each vector, scaled back to length 1, as OpenAI does; all of them for None.

    A vector that is cut to zeros stays zeros.
    """
    if dimensions is None or dimensions >= vectors.shape[1]:
        return vectors
    return unit(vectors[:, :dimensions])


def unit(vectors: Array) -> Array:
    """Each vector at length 1."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: Array = vectors / np.where(lengths > 0, lengths, 1)
    return found


def embeddings_parts(
    model: str, vectors: Array, encoding: Literal["float", "base64"], num_tokens: int
) -> Iterator[bytes]:
    """The body in pieces, one per vector."""
    yield b'{"object":"list","data":['
    for index, vector in enumerate(vectors):
        comma = b"," if index else b""
        yield b'%b{"object":"embedding","index":%d,"embedding":%b}' % (comma, index, _encoded(vector, encoding))
    end = orjson.dumps({"model": model, "usage": _usage(num_tokens)})
    yield b"]," + end[1:]


def rerank_answer(asked: RerankAsked, scores: Sequence[float], request_id: str, num_tokens: int) -> dict[str, Any]:
    """The best documents, best first; equal ones in the order they were given."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[: asked.top_n]
    results: list[dict[str, Any]] = [{"index": index, "relevance_score": scores[index]} for index in order]
    if asked.returns_documents:
        for result in results:
            result["document"] = {"text": asked.documents[result["index"]]}
    return {
        "id": f"rerank-{request_id}",
        "object": "list",
        "model": asked.model,
        "results": results,
        "usage": _usage(num_tokens),
    }


def score_answer(
    model: str, scores: Sequence[float], request_id: str, created_unix_s: int, num_tokens: int
) -> dict[str, Any]:
    """A score per pair, in order."""
    return {
        "id": f"score-{request_id}",
        "object": "list",
        "created": created_unix_s,
        "model": model,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": _usage(num_tokens),
    }


def cosines(first: Array, second: Array) -> list[float]:
    """Cosine of each pair; a single first vector goes with every second one. 0 for a vector of zeros."""
    found: list[float] = np.clip((unit(first) * unit(second)).sum(axis=1), -1, 1).astype(float).tolist()
    return found


def model_object(name: str, created_unix_s: int) -> dict[str, Any]:
    """One model."""
    return {"id": name, "object": "model", "created": created_unix_s, "owned_by": OWNER}


def _encoded(vector: Array, encoding: Literal["float", "base64"]) -> bytes:
    little_endian = np.ascontiguousarray(vector, "<f4")
    if encoding == "base64":
        return b'"%b"' % base64.b64encode(little_endian.tobytes())
    return orjson.dumps(little_endian, option=orjson.OPT_SERIALIZE_NUMPY)


def _usage(num_tokens: int) -> dict[str, int]:
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
