"""MiniLM: all-MiniLM-L6-v2 as an ONNX graph, written node by node from its safetensors weights; no PyTorch.

Does not tokenise: the tokenizer lies beside the model, callers use it.

    input_ids INT64 [n, s], attention_mask INT64 [n, s]  ->  sentence_embedding FP32 [n, 384], of length 1

Every linear layer is one Gemm over the flattened [n*s, width] tokens, weights in their stored layout. On one core
with 8 rows of 32 tokens that gave 152 rows/s, MatMul + Add 148, and ONNX Runtime's fused Attention and
SkipLayerNormalization operators 125: nearly nine tenths of the time are matrix products, so fusing the rest gains
nothing.

Source: the BERT encoder as in the model's config.json; pooling as in its 1_Pooling and 2_Normalize folders.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import onnx
from graph import GraphPen
from original import minilm_folder

OPSET = 20  # the first with Gelu
NUM_LAYERS = 6
NUM_HEADS = 12
HEAD_WIDTH = 32
WIDTH = NUM_HEADS * HEAD_WIDTH
LAYER_NORM_EPSILON = 1e-12
MAX_TOKENS = 256  # sentence_bert_config.json: what the model was tuned for; its positions go to 512

# Added to the score of a padding token; exp(-10000) is 0 in FP32, and unlike -inf a row of padding alone stays finite.
MASKED_SCORE = -10_000.0

Weights = dict[str, np.ndarray]


def build(version_dir: Path) -> None:
    """Write `model.onnx` and `tokenizer.json` into `version_dir`."""
    onnx.save(model(), version_dir / "model.onnx")
    (version_dir / "tokenizer.json").write_text(tokenizer_text(), encoding="utf-8")


def model() -> onnx.ModelProto:
    """The whole graph in FP32."""
    return _model(_weights())


def tokenizer_text() -> str:
    """The tokenizer's file. As shipped it cuts and fills every text to 128 tokens: the padding would be computed."""
    tokenizer = json.loads((minilm_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["padding"] = None
    tokenizer["truncation"]["max_length"] = MAX_TOKENS
    return json.dumps(tokenizer, ensure_ascii=False)


def word_embeddings() -> np.ndarray:
    """[vocabulary, 384], a row per token."""
    return _weights()["embeddings.word_embeddings.weight"]


@functools.cache
def _weights() -> Weights:
    return _read_safetensors(minilm_folder() / "model.safetensors")


def _read_safetensors(path: Path) -> Weights:
    """Read the FP32 tensors of a safetensors file: header length, JSON header, raw little-endian tensors."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:start])
    weights = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            first, last = entry["data_offsets"]
            weights[name] = np.frombuffer(raw[start + first : start + last], "<f4").reshape(entry["shape"])
    return weights


def _model(weights: Weights) -> onnx.ModelProto:
    pen = GraphPen(OPSET)
    _write_shapes(pen)
    tokens = _embeddings(pen, weights)
    for index in range(NUM_LAYERS):
        tokens = _layer(pen, weights, f"encoder.layer.{index}", tokens)
    _pooling(pen, tokens)
    int64, fp32 = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    inputs = {name: (int64, ["batch", "sequence"]) for name in ("input_ids", "attention_mask")}
    return pen.model("minilm", inputs, {"sentence_embedding": (fp32, ["batch", WIDTH])})


def _write_shapes(pen: GraphPen) -> None:
    """Values that every layer uses: the shapes to and fro, and the mask as an addend."""
    pen.node("Shape", ["input_ids"], "rows_and_tokens")
    pen.node("Concat", ["rows_and_tokens", pen.constant("heads", [NUM_HEADS, HEAD_WIDTH])], "heads_shape", axis=0)
    pen.node("Concat", ["rows_and_tokens", pen.constant("width", [WIDTH])], "rows_shape", axis=0)
    pen.constant("flat_shape", [-1, WIDTH])
    pen.constant("scale", HEAD_WIDTH**-0.5, np.float32)
    pen.node("Cast", ["attention_mask"], "mask", to=onnx.TensorProto.FLOAT)
    pen.node("Sub", [pen.constant("one", 1, np.float32), "mask"], "is_padding")
    pen.node("Mul", ["is_padding", pen.constant("masked_score", MASKED_SCORE, np.float32)], "padding_scores")
    pen.node("Unsqueeze", ["padding_scores", pen.constant("head_and_query_axes", [1, 2])], "score_mask")


def _embeddings(pen: GraphPen, weights: Weights) -> str:
    """Word + position + segment, normalised. Every text is segment 0, so its vector is added to the positions."""
    word = pen.constant("words", weights["embeddings.word_embeddings.weight"])
    segment = weights["embeddings.token_type_embeddings.weight"][0]
    pen.constant("positions", weights["embeddings.position_embeddings.weight"] + segment)
    pen.node("Shape", ["input_ids"], "num_tokens", start=1)
    pen.node("Slice", ["positions", pen.constant("zero", [0]), "num_tokens", "zero"], "used_positions")
    pen.node("Gather", [word, "input_ids"], "word_vectors")
    pen.node("Add", ["word_vectors", "used_positions"], "token_vectors")
    pen.node("Reshape", ["token_vectors", "flat_shape"], "flat_vectors")
    return _normalised(pen, weights, "embeddings.LayerNorm", "flat_vectors")  # [n*s, 384]


def _layer(pen: GraphPen, weights: Weights, name: str, tokens: str) -> str:
    mixed = _attention(pen, weights, f"{name}.attention.self", tokens)
    mixed = _linear(pen, weights, f"{name}.attention.output.dense", mixed)
    pen.node("Add", [mixed, tokens], f"{name}.attention.residual")
    tokens = _normalised(pen, weights, f"{name}.attention.output.LayerNorm", f"{name}.attention.residual")
    wide = _linear(pen, weights, f"{name}.intermediate.dense", tokens)
    pen.node("Gelu", [wide], f"{name}.gelu")  # the exact one, with erf
    narrow = _linear(pen, weights, f"{name}.output.dense", f"{name}.gelu")
    pen.node("Add", [narrow, tokens], f"{name}.residual")
    return _normalised(pen, weights, f"{name}.output.LayerNorm", f"{name}.residual")


def _attention(pen: GraphPen, weights: Weights, name: str, tokens: str) -> str:
    """softmax(query key^T / sqrt(32) + mask) value, for each of the twelve heads."""
    heads = {}
    # Keys come out transposed, ready for the product.
    for part, order in (("query", [0, 2, 1, 3]), ("key", [0, 2, 3, 1]), ("value", [0, 2, 1, 3])):
        linear = _linear(pen, weights, f"{name}.{part}", tokens)
        pen.node("Reshape", [linear, "heads_shape"], f"{name}.{part}.split")
        heads[part] = pen.node("Transpose", [f"{name}.{part}.split"], f"{name}.{part}.heads", perm=order)
    pen.node("MatMul", [heads["query"], heads["key"]], f"{name}.products")  # [n, 12, s, s]
    pen.node("Mul", [f"{name}.products", "scale"], f"{name}.scores")
    pen.node("Add", [f"{name}.scores", "score_mask"], f"{name}.masked")
    pen.node("Softmax", [f"{name}.masked"], f"{name}.probabilities", axis=-1)
    pen.node("MatMul", [f"{name}.probabilities", heads["value"]], f"{name}.context")  # [n, 12, s, 32]
    pen.node("Transpose", [f"{name}.context"], f"{name}.joined", perm=[0, 2, 1, 3])
    return pen.node("Reshape", [f"{name}.joined", "flat_shape"], f"{name}.flat")


def _pooling(pen: GraphPen, tokens: str) -> None:
    """Mean over the real tokens, scaled to length 1."""
    pen.node("Reshape", [tokens, "rows_shape"], "last_hidden_state")  # [n, s, 384]
    pen.node("Unsqueeze", ["mask", pen.constant("token_axis", [1])], "mask_row")
    pen.node("MatMul", ["mask_row", "last_hidden_state"], "sum_row")
    pen.node("Squeeze", ["sum_row", "token_axis"], "sum")
    pen.node("ReduceSum", ["mask", "token_axis"], "num_real", keepdims=1)
    pen.node("Max", ["num_real", pen.constant("least_count", 1e-9, np.float32)], "count")
    pen.node("Div", ["sum", "count"], "mean")
    pen.node("ReduceL2", ["mean", "token_axis"], "length", keepdims=1)
    pen.node("Max", ["length", pen.constant("least_length", 1e-12, np.float32)], "divisor")
    pen.node("Div", ["mean", "divisor"], "sentence_embedding")


def _linear(pen: GraphPen, weights: Weights, name: str, tokens: str) -> str:
    weight = pen.constant(f"{name}.weight", weights[f"{name}.weight"])  # [out, in]
    bias = pen.constant(f"{name}.bias", weights[f"{name}.bias"])
    return pen.node("Gemm", [tokens, weight, bias], f"{name}.out", transB=1)


def _normalised(pen: GraphPen, weights: Weights, name: str, tokens: str) -> str:
    gain = pen.constant(f"{name}.weight", weights[f"{name}.weight"])
    shift = pen.constant(f"{name}.bias", weights[f"{name}.bias"])
    attributes = {"axis": -1, "epsilon": LAYER_NORM_EPSILON}
    return pen.node("LayerNormalization", [tokens, gain, shift], f"{name}.out", **attributes)
