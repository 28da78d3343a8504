"""An example of each JSON body in `schemas.py`. Data only; tests hold each against its schema."""

from __future__ import annotations

from typing import Any, Final

_DURATION: Final = {"count": 12, "ns": 34_000_000}
_TIMES: Final = dict.fromkeys(("compute_input", "compute_infer", "compute_output"), _DURATION)
_USAGE: Final = {"prompt_tokens": 9, "total_tokens": 9}
_SCORE: Final = {"datatype": "FP32", "shape": [1, 2], "data": [0.93, 0.07]}

EXAMPLES: Final[dict[str, Any]] = {
    "Error": {"error": "model 'toxicty' is not known"},
    "OpenAIError": {
        "error": {
            "message": "model 'minlm' is not known",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    },
    "ServerMetadata": {
        "name": "headrace",
        "version": "0.3.0",
        "extensions": ["binary_tensor_data", "model_repository", "statistics"],
    },
    "Live": {"live": True},
    "Ready": {"ready": True},
    "ModelReady": {"name": "toxicity", "ready": True},
    "ModelMetadata": {
        "name": "toxicity",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 1]}],
        "outputs": [{"name": "probabilities", "datatype": "FP32", "shape": [-1, 2]}],
    },
    "ModelConfig": {"name": "toxicity", "backend": "onnxruntime", "max_batch_size": 64},
    "ModelStatistics": {
        "model_stats": [
            {
                "name": "toxicity",
                "version": "1",
                "last_inference": 1_767_225_600_000,
                "inference_count": 40,
                "execution_count": 12,
                "inference_stats": {
                    **dict.fromkeys(("success", "fail", "queue", "cache_hit", "cache_miss"), _DURATION),
                    **_TIMES,
                },
                "response_stats": {},
                "batch_stats": [{"batch_size": 4, **_TIMES}],
                "memory_usage": [],
            }
        ]
    },
    "InferRequest": {
        "id": "42",
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["what a lovely day"]}],
        "outputs": [{"name": "probabilities"}],
    },
    "InferResponse": {
        "id": "42",
        "model_name": "toxicity",
        "model_version": "2",
        "outputs": [{"name": "probabilities", **_SCORE}],
    },
    "LaterRequest": {"id": "p7l2Wc0mXqf4uJ9bS3aTdEeR", "state": "running"},
    "IndexRequest": {"ready": True},
    "Index": [
        {"name": "toxicity", "version": "1", "state": "READY"},
        {"name": "toxicity", "version": "2", "state": "UNAVAILABLE", "reason": "model.onnx: no such file"},
    ],
    "LoadRequest": {"parameters": {"config": '{"max_batch_size": 16}'}},
    "UnloadRequest": {"parameters": {"unload_dependents": False}},
    "Done": {},
    "Document": {"openapi": "3.1.0", "info": {}, "paths": {}},
    "Usage": {
        "from": "2026-01-01",
        "to": "2026-01-01",
        "usage": [{"tenant": "acme", "requests": 12, "rows": 40, "payload_bytes": 9_600, "execution_us": 81_000}],
    },
    "OpenAIModel": {"id": "minilm", "object": "model", "created": 1_767_225_600, "owned_by": "headrace"},
    "OpenAIModels": {
        "object": "list",
        "data": [{"id": "minilm", "object": "model", "created": 1_767_225_600, "owned_by": "headrace"}],
    },
    "EmbeddingsRequest": {"model": "minilm", "input": ["a cat", "a dog"], "encoding_format": "float"},
    "Embeddings": {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.12, -0.4, 0.9]}],
        "model": "minilm",
        "usage": _USAGE,
    },
    "RerankRequest": {"model": "minilm", "query": "pets", "documents": ["a cat", "a car"], "top_n": 1},
    "Rerank": {
        "id": "rerank-1",
        "object": "list",
        "model": "minilm",
        "results": [{"index": 0, "relevance_score": 0.71}],
        "usage": _USAGE,
    },
    "ScoreRequest": {"model": "minilm", "text_1": "pets", "text_2": ["a cat", "a car"]},
    "Score": {
        "id": "score-1",
        "object": "list",
        "created": 1_767_225_600,
        "model": "minilm",
        "data": [{"index": 0, "object": "score", "score": 0.71}],
        "usage": _USAGE,
    },
}
