"""Whether and how a model embeds: which input takes texts or tokens, which output is the vector. Pure; asks no model.

    model with a tokenizer            `text`                     token arrays as `input_ids` (and its mask)
    model with one BYTES input        that input                 no token arrays
    vector                            the output that `embedding_output` names, or the one with `embed` in its name

Invariants: every input is in exactly one portion, and no portion is over the model's rows
(tests/unit/test_openai_embedder.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from contract.errors import ModelFailed, TextTooLong
from contract.messages import TensorHead
from contract.model_config import ModelConfig, TensorSpec
from contract.tensors import NUMPY_TYPES, Array, encode_elements, to_array
from contract.text import (
    EMBEDDING_OUTPUT,
    ID_INPUTS,
    IDS,
    MASK,
    MAX_TOKENS,
    NUM_TOKENS,
    NUM_TRUNCATED,
    TEXT_INPUT,
    takes_text,
)
from gateway.core import Answer
from gateway.openai.asked import Inputs
from gateway.openai.errors import ApiRefused, at_input

FLOATS: Final = ("FP16", "FP32", "FP64")
PORTION_TOKENS: Final = 512
"""Padded tokens of one internal request, as workers join them: more is not faster on a CPU, and others wait longer."""
BYTES_PER_TOKEN: Final = 4
"""Of English text; only the size of portions hangs on it."""


class Tensors(NamedTuple):
    """The inputs of one internal request."""

    heads: tuple[TensorHead, ...]
    data: list[bytes | memoryview]
    sizes: tuple[int, ...]
    num_tokens: int
    """0 where only the worker will know."""


class Vectors(NamedTuple):
    """What came of one internal request."""

    array: Array
    num_tokens: int
    num_truncated: int


@dataclass(frozen=True, slots=True)
class Embedder:
    """One model as the OpenAI routes use it."""

    model: str
    max_rows: int
    text_input: str
    """Empty for a model that takes token arrays only."""
    ids: tuple[TensorSpec, ...]
    """Inputs that token arrays fill; empty for a model that takes text only."""
    max_tokens: int | None
    is_ragged: bool
    """Rows cost by their length."""
    output: TensorSpec

    def check(self, inputs: Inputs, names: Sequence[str]) -> None:
        """Raises ApiRefused for inputs that this model can't take, by name."""
        if isinstance(inputs[0], str):
            if not self.text_input:
                raise ApiRefused(f"model {self.model!r} has no tokenizer: send token arrays", "input")
            return
        if not self.ids:
            raise ApiRefused(f"model {self.model!r} takes text, no token arrays", "input")
        for tokens, name in zip(inputs, names, strict=True):
            if self.max_tokens is not None and len(tokens) > self.max_tokens:
                limit = f"model {self.model!r} reads at most {self.max_tokens}"
                raise at_input(TextTooLong(f"{len(tokens)} tokens, {limit}; token arrays are not cut"), name)

    def check_dimensions(self, dimensions: int | None, width: int) -> None:
        """Raises ApiRefused where more are wanted than there are; a `width` of -1 is not known yet."""
        if dimensions is not None and dimensions > width >= 0:
            raise ApiRefused(f"dimensions is {dimensions}, model {self.model!r} has {width}", "dimensions")

    def portions(self, inputs: Inputs) -> list[list[int]]:
        """Indices of the inputs that go together in one internal request, those of about one length; longest first."""
        lengths = [_num_tokens(item) if self.is_ragged else 1 for item in inputs]
        waiting = sorted(range(len(inputs)), key=lambda index: -lengths[index])
        found: list[list[int]] = []
        at = 0
        while at < len(waiting):
            fitting = PORTION_TOKENS // lengths[waiting[at]] if self.is_ragged else self.max_rows
            num = max(1, min(self.max_rows, fitting))
            found.append(waiting[at : at + num])
            at += num
        return found

    def tensors(self, inputs: Inputs) -> Tensors:
        """One internal request's inputs."""
        if isinstance(inputs[0], str):
            raw = encode_elements(str(text).encode() for text in inputs)
            return Tensors((TensorHead(self.text_input, "BYTES", (len(inputs), 1)),), [raw], (len(raw),), 0)
        rows: list[list[int]] = [list(map(int, tokens)) for tokens in inputs]
        longest = max(self.ids[0].dims[0], *(len(tokens) for tokens in rows))
        heads, data = [], []
        for spec in self.ids:
            array = np.zeros((len(rows), longest), NUMPY_TYPES[spec.datatype])
            for row, tokens in enumerate(rows):
                if spec.name in (IDS, MASK):
                    array[row, : len(tokens)] = tokens if spec.name == IDS else 1
            heads.append(TensorHead(spec.name, spec.datatype, array.shape))
            data.append(array.tobytes())
        return Tensors(tuple(heads), [*data], (), sum(map(len, rows)))

    def vectors(self, answer: Answer, rows: int, num_tokens: int) -> Vectors:
        """The answer's vectors, FP32.

        Raises:
            ModelFailed: there is no such output, it has another shape, or NaN or infinity in it.
        """
        for head, data in zip(answer.heads, answer.data, strict=True):
            if head.name == self.output.name:
                array = to_array(head, data).astype(np.float32)
                break
        else:
            raise ModelFailed(f"model {self.model!r} answered no output {self.output.name!r}")
        if array.ndim != 2 or len(array) != rows:
            raise ModelFailed(f"model {self.model!r} answered vectors of shape {list(array.shape)} for {rows} inputs")
        if not np.isfinite(array).all():
            raise ModelFailed(f"model {self.model!r} answered a vector with NaN or infinity in it")
        return Vectors(array, num_tokens or _count(answer, NUM_TOKENS), _count(answer, NUM_TRUNCATED))


def embedder(config: ModelConfig) -> Embedder:
    """How the model embeds.

    Raises:
        ApiRefused: it doesn't; says what is missing.
    """
    needed = {spec.name for spec in config.inputs if not spec.is_optional}
    ids = tuple(spec for spec in config.inputs if spec.name in ID_INPUTS)
    text_input = ""
    if takes_text(config) and needed <= set(ID_INPUTS):
        text_input = TEXT_INPUT
    elif len(needed) == 1:
        text_input = next((s.name for s in config.inputs if s.name in needed and _is_text(s)), "")
    if not any(spec.name == IDS for spec in ids) or not needed <= set(ID_INPUTS) or any(len(s.dims) != 1 for s in ids):
        ids = ()
    if not config.max_batch_size or not (text_input or ids):
        raise ApiRefused(f"model {config.name!r} takes neither text nor tokens, one per row of a batch", "model")
    limits = [spec.dims[0] for spec in ids if spec.dims[0] > 0]
    if (value := config.parameters.get(MAX_TOKENS, "")) and value.isdigit() and takes_text(config):
        limits.append(int(value))
    return Embedder(
        model=config.name,
        max_rows=config.max_batch_size,
        text_input=text_input,
        ids=ids,
        max_tokens=min(limits, default=None),
        is_ragged=bool(ids),
        output=_output(config),
    )


def _output(config: ModelConfig) -> TensorSpec:
    named = config.parameters.get(EMBEDDING_OUTPUT)
    fitting = [spec for spec in config.outputs if spec.datatype in FLOATS and len(spec.dims) == 1]
    found = [spec for spec in fitting if (spec.name == named if named else "embed" in spec.name.lower())]
    if len(found) != 1:
        names = ", ".join(repr(spec.name) for spec in config.outputs) or "none"
        raise ApiRefused(
            f"model {config.name!r} does not embed: it has outputs {names}, and no parameter 'embedding_output' "
            f"says which is the vector",
            "model",
        )
    return found[0]


def _is_text(spec: TensorSpec) -> bool:
    return spec.datatype == "BYTES" and spec.dims in ((1,), (-1,))


def _num_tokens(item: str | list[int]) -> int:
    """Exact for tokens, a guess for text."""
    return len(item) if isinstance(item, list) else 2 + len(item) // BYTES_PER_TOKEN


def _count(answer: Answer, name: str) -> int:
    value = answer.parameters.get(name, 0)
    return value if isinstance(value, int) else 0
