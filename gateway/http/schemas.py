"""JSON Schemas (2020-12) of what goes over HTTP, with an example of each. Data only; checks no request.

Objects are open: unknown fields of requests are ignored, and answers may gain fields.

Source: KServe OIP v2; Triton's extensions; OpenAI API reference; Jina "Rerank"; vLLM "Score API".
"""

from __future__ import annotations

from typing import Any, Final

from contract.tensors import DATATYPES

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer"}
_FLAG: Final[Schema] = {"type": "boolean"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}


def ref(name: str) -> Schema:
    """A schema of this file."""
    return {"$ref": f"#/components/schemas/{name}"}


def _list(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


def _object(properties: dict[str, Schema], *required: str, **more: Any) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {}), **more}


def _all_of(properties: dict[str, Schema], **more: Any) -> Schema:
    return _object(properties, *properties, **more)


_DURATION: Final = _all_of({"count": _COUNT, "ns": _COUNT}, description="How often, and how long in all.")
_TIMES: Final = ("compute_input", "compute_infer", "compute_output")
_SHAPE: Final = _list({"type": "integer", "minimum": 0})
_PARAMETERS: Final = _object({}, additionalProperties={"type": ["boolean", "number", "string"]})
_DATA: Final = _list({}, description="Flat or nested, row by row. Absent where the bytes lie behind the JSON.")
_TENSOR: Final = {
    "name": _TEXT,
    "datatype": {"type": "string", "enum": sorted(DATATYPES)},
    "shape": _SHAPE,
    "data": _DATA,
    "parameters": _object({"binary_data_size": _COUNT}),
}
_OUT: Final = {"binary_data": _FLAG, "classification": _COUNT}
_USAGE: Final = _all_of({"prompt_tokens": _COUNT, "total_tokens": _COUNT})
_TOKENS: Final = _list({"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, minItems=1)
_WORDS: Final[Schema] = {"type": "string", "minLength": 1}
_ONE_OR_MANY: Final[Schema] = {"anyOf": [_WORDS, _list(_WORDS, minItems=1, maxItems=2048)]}
_MODEL_ID: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": 128}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _all_of({"error": _TEXT}, description="Says what is wrong and with which values."),
    "OpenAIError": _all_of(
        {
            "error": _all_of(
                {
                    "message": _TEXT,
                    "type": _TEXT,
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                }
            )
        }
    ),
    "ServerMetadata": _all_of({"name": _TEXT, "version": _TEXT, "extensions": _list(_TEXT)}),
    "Live": _all_of({"live": {"const": True}}),
    "Ready": _all_of({"ready": {"const": True}}),
    "ModelReady": _all_of({"name": _TEXT, "ready": {"const": True}}),
    "ModelMetadata": _all_of(
        {
            "name": _TEXT,
            "versions": _list(_TEXT),
            "platform": _TEXT,
            "inputs": _list(ref("TensorMetadata")),
            "outputs": _list(ref("TensorMetadata")),
        }
    ),
    "TensorMetadata": _all_of(
        {"name": _TEXT, "datatype": _TENSOR["datatype"], "shape": _list({"type": "integer", "minimum": -1})}
    ),
    "ModelConfig": _object({"name": _TEXT, "max_batch_size": _COUNT}, "name", description="Triton's ModelConfig."),
    "ModelStatistics": _all_of({"model_stats": _list(ref("VersionStatistics"))}),
    "VersionStatistics": _all_of(
        {
            "name": _TEXT,
            "version": _TEXT,
            "last_inference": _COUNT,
            "inference_count": _COUNT,
            "execution_count": _COUNT,
            "inference_stats": _all_of(
                dict.fromkeys(("success", "fail", "queue", *_TIMES, "cache_hit", "cache_miss"), _DURATION)
            ),
            "response_stats": _object({}),
            "batch_stats": _list(_all_of({"batch_size": _WHOLE, **dict.fromkeys(_TIMES, _DURATION)})),
            "memory_usage": _list(_object({})),
        }
    ),
    "InferRequest": _object(
        {
            "id": _TEXT,
            "inputs": _list(_object(_TENSOR, "name", "shape", "datatype"), minItems=1),
            "outputs": _list(_object({"name": _TEXT, "parameters": _object(_OUT)}, "name")),
            "parameters": _object({"priority": _COUNT, "timeout": _COUNT, "binary_data_output": _FLAG}),
        },
        "inputs",
    ),
    "InferResponse": _object(
        {
            "id": _TEXT,
            "model_name": _TEXT,
            "model_version": _TEXT,
            "outputs": _list(_object(_TENSOR, "name", "shape", "datatype")),
            "parameters": _PARAMETERS,
        },
        "model_name",
        "model_version",
        "outputs",
    ),
    "LaterRequest": _all_of({"id": _TEXT, "state": {"const": "running"}}),
    "IndexRequest": _object({"ready": _FLAG}),
    "Index": _list(
        _object(
            {
                "name": _TEXT,
                "version": _TEXT,
                "state": {"enum": ["LOADING", "READY", "UNLOADING", "UNAVAILABLE"]},
                "reason": _TEXT,
            },
            "name",
        )
    ),
    "LoadRequest": _object(
        {
            "parameters": _object(
                {"config": {"type": "string", "description": "Triton's ModelConfig as JSON."}},
                patternProperties={"^file:": {"type": "string", "contentEncoding": "base64"}},
                additionalProperties=False,
            )
        }
    ),
    "UnloadRequest": _object({"parameters": _object({"unload_dependents": _FLAG}, additionalProperties=False)}),
    "Done": _object({}, maxProperties=0),
    "Document": _object({"openapi": _TEXT, "info": _object({}), "paths": _object({})}, "openapi", "info", "paths"),
    "Usage": _object(
        {
            "from": _TEXT,
            "to": _TEXT,
            "usage": _list(
                _object(
                    {
                        **dict.fromkeys(("day", "tenant", "key", "model"), _TEXT),
                        **dict.fromkeys(("requests", "rows", "payload_bytes", "execution_us"), _WHOLE),
                    },
                    "requests",
                    "rows",
                    "payload_bytes",
                    "execution_us",
                )
            ),
        },
        "from",
        "to",
        "usage",
    ),
    "OpenAIModel": _all_of({"id": _TEXT, "object": {"const": "model"}, "created": _WHOLE, "owned_by": _TEXT}),
    "OpenAIModels": _all_of({"object": {"const": "list"}, "data": _list(ref("OpenAIModel"))}),
    "EmbeddingsRequest": _object(
        {
            "model": _MODEL_ID,
            "input": {"anyOf": [*_ONE_OR_MANY["anyOf"], _TOKENS, _list(_TOKENS, minItems=1, maxItems=2048)]},
            "encoding_format": {"enum": ["float", "base64"]},
            "dimensions": {"type": "integer", "minimum": 1},
        },
        "model",
        "input",
    ),
    "Embeddings": _all_of(
        {
            "object": {"const": "list"},
            "data": _list(
                _all_of(
                    {
                        "object": {"const": "embedding"},
                        "index": _COUNT,
                        "embedding": {"anyOf": [_list({"type": "number"}), _TEXT]},
                    }
                )
            ),
            "model": _TEXT,
            "usage": _USAGE,
        }
    ),
    "RerankRequest": _object(
        {
            "model": _MODEL_ID,
            "query": _WORDS,
            "documents": _list({"anyOf": [_WORDS, _object({"text": _WORDS}, "text")]}, minItems=1, maxItems=2048),
            "top_n": {"type": "integer", "minimum": 1},
            "return_documents": _FLAG,
        },
        "model",
        "query",
        "documents",
    ),
    "Rerank": _object(
        {
            "id": _TEXT,
            "object": {"const": "list"},
            "model": _TEXT,
            "results": _list(
                _object(
                    {"index": _COUNT, "relevance_score": {"type": "number"}, "document": _all_of({"text": _TEXT})},
                    "index",
                    "relevance_score",
                )
            ),
            "usage": _USAGE,
        },
        "model",
        "results",
    ),
    "ScoreRequest": _object(
        {"model": _MODEL_ID, "text_1": _ONE_OR_MANY, "text_2": _ONE_OR_MANY}, "model", "text_1", "text_2"
    ),
    "Score": _all_of(
        {
            "id": _TEXT,
            "object": {"const": "list"},
            "created": _WHOLE,
            "model": _TEXT,
            "data": _list(_all_of({"index": _COUNT, "object": {"const": "score"}, "score": {"type": "number"}})),
            "usage": _USAGE,
        }
    ),
}
