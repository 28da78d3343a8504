"""A linear text classifier over token ids: trained with scikit-learn, written as an ONNX graph. Knows no data.

    logits = bias + (sum of weights[token] + sum of weights[pair of neighbouring tokens]) / sqrt(number of tokens)

One row of weights per token of minilm's vocabulary. Pairs share rows by a hash that the graph computes too, so that
training and serving see the same numbers. A token that the texts hardly have gets what its neighbours in minilm's
word embeddings say: else a classifier from some thousand texts would know most words not at all.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from graph import GraphPen
from minilm import tokenizer_text, word_embeddings
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer

OPSET = 20
PAIR_FACTOR = 31
HELD_OUT_TENTHS = 1
MAX_ITERATIONS = 80
TOLERANCE = 1e-3
HALF_SEEN = 2.0
"""Occurrences at which a token's own weight and its neighbours' count alike."""
MAX_OCCURRENCES = 50.0
RIDGE = 1_000.0


@dataclass(frozen=True, slots=True)
class Example:
    """A text, its class, and what decides whether it is held out: texts of one group are together on one side."""

    text: str
    label: int
    group: str
    source: str = ""
    weight: float = 1.0
    """How much it counts in training."""

    @property
    def is_held_out(self) -> bool:
        """One in ten groups, always the same ones."""
        return zlib.crc32(self.group.lower().encode()) % 10 < HELD_OUT_TENTHS


@dataclass(frozen=True, slots=True)
class Weights:
    """What was learned; `tokens` is [vocabulary, classes], `pairs` is [rows, classes] or has no rows."""

    tokens: np.ndarray
    pairs: np.ndarray
    bias: np.ndarray


def train(examples: Sequence[Example], num_classes: int, num_pair_rows: int, strength: float) -> Weights:
    """Learn from the examples that are not held out. `strength` is scikit-learn's C: higher fits the texts closer."""
    used = [example for example in examples if not example.is_held_out]
    features = _features([example.text for example in used], num_pair_rows)
    labels = np.array([example.label for example in used])
    assert set(labels) == set(range(num_classes)), "a class without a text can't be learned"
    model = LogisticRegression(C=strength, max_iter=MAX_ITERATIONS, tol=TOLERANCE)
    model.fit(features, labels, sample_weight=[example.weight for example in used])
    learned = model.coef_.T  # [vocabulary + pair rows, classes]
    vocabulary = len(word_embeddings())
    tokens = _with_neighbours(learned[:vocabulary], features[:, :vocabulary])
    return Weights(tokens, learned[vocabulary:], model.intercept_)


def accuracy(weights: Weights, examples: Sequence[Example]) -> float:
    """Part of the held-out examples that get their own class."""
    held_out = [example for example in examples if example.is_held_out]
    features = _features([example.text for example in held_out], len(weights.pairs))
    logits = features @ np.vstack([weights.tokens, weights.pairs]) + weights.bias
    return float((logits.argmax(1) == [example.label for example in held_out]).mean())


def write(weights: Weights, name: str, folder: Path) -> None:
    """Write `model.onnx`, and `tokenizer.json` with minilm's vocabulary."""
    onnx.save(_graph(weights, name), folder / "model.onnx")
    (folder / "tokenizer.json").write_text(tokenizer_text(), encoding="utf-8")


@functools.cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_str(tokenizer_text())


def _features(texts: Sequence[str], num_pair_rows: int) -> sparse.csr_matrix:
    """[texts, vocabulary + pair rows]: how often each occurs, over the root of the text's length."""
    vocabulary = len(word_embeddings())
    columns: list[int] = []
    values: list[float] = []
    ends = [0]
    for encoding in _tokenizer().encode_batch(list(texts)):
        ids = encoding.ids
        columns += ids
        if num_pair_rows:
            pairs = itertools.pairwise(ids)
            columns += [vocabulary + (a * PAIR_FACTOR + b) % num_pair_rows for a, b in pairs]
        values += [len(ids) ** -0.5] * (len(columns) - ends[-1])
        ends.append(len(columns))
    found = sparse.csr_matrix((values, columns, ends), shape=(len(texts), vocabulary + num_pair_rows))
    found.sum_duplicates()
    return found


def _with_neighbours(learned: np.ndarray, features: sparse.csr_matrix) -> np.ndarray:
    """Mix each token's weights with those that a ridge regression over the word embeddings gives it."""
    embeddings = word_embeddings().astype(np.float64)
    embeddings = (embeddings - embeddings.mean(0)) / embeddings.std()
    occurrences = np.diff(features.tocsc().indptr)
    trust = np.sqrt(np.minimum(occurrences, MAX_OCCURRENCES))[:, None]
    seen = embeddings * trust
    square = seen.T @ seen + np.eye(seen.shape[1]) * RIDGE
    told = embeddings @ np.linalg.solve(square, seen.T @ (learned * trust))
    own = (occurrences / (occurrences + HALF_SEEN))[:, None]
    mixed: np.ndarray = own * learned + (1 - own) * told
    return mixed


def _graph(weights: Weights, name: str) -> onnx.ModelProto:
    pen = GraphPen(OPSET)
    pen.node("Cast", ["attention_mask"], "mask", to=onnx.TensorProto.FLOAT)
    pen.constant("class_axis", [-1])
    pen.constant("token_axis", [1])
    pen.node("Unsqueeze", ["mask", "class_axis"], "mask_column")  # [n, s, 1]
    pen.node("Gather", [pen.constant("tokens", weights.tokens, np.float32), "input_ids"], "token_weights")
    pen.node("Mul", ["token_weights", "mask_column"], "real_weights")  # [n, s, classes]
    pen.node("ReduceSum", ["real_weights", "token_axis"], "token_sum", keepdims=0)
    total = _with_pairs(pen, weights.pairs) if len(weights.pairs) else "token_sum"
    pen.node("ReduceSum", ["mask", "token_axis"], "count", keepdims=1)
    pen.node("Max", ["count", pen.constant("least_count", 1, np.float32)], "divisor")
    pen.node("Sqrt", ["divisor"], "root")
    pen.node("Div", [total, "root"], "scaled")
    pen.node("Add", ["scaled", pen.constant("bias", weights.bias, np.float32)], "logits")
    int64, fp32 = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    inputs = {key: (int64, ["batch", "sequence"]) for key in ("input_ids", "attention_mask")}
    return pen.model(name, inputs, {"logits": (fp32, ["batch", len(weights.bias)])})


def _with_pairs(pen: GraphPen, pairs: np.ndarray) -> str:
    """A pair counts where its second token is real: padding is on the right."""
    pen.constant("first", [0])
    pen.constant("second", [1])
    pen.constant("last", [-1])
    pen.constant("end", [np.iinfo(np.int64).max])
    pen.node("Slice", ["input_ids", "first", "last", "token_axis"], "left")
    pen.node("Slice", ["input_ids", "second", "end", "token_axis"], "right")
    pen.node("Mul", ["left", pen.constant("pair_factor", PAIR_FACTOR, np.int64)], "left_part")
    pen.node("Add", ["left_part", "right"], "pair_number")
    pen.node("Mod", ["pair_number", pen.constant("num_pair_rows", len(pairs), np.int64)], "pair_ids")
    pen.node("Gather", [pen.constant("pairs", pairs, np.float32), "pair_ids"], "pair_weights")
    pen.node("Slice", ["mask_column", "second", "end", "token_axis"], "pair_mask")
    pen.node("Mul", ["pair_weights", "pair_mask"], "real_pairs")  # [n, s - 1, classes]
    pen.node("ReduceSum", ["real_pairs", "token_axis"], "pair_sum", keepdims=0)
    return pen.node("Add", ["token_sum", "pair_sum"], "sum")
