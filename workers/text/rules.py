"""What a model's config says about its texts: the tokenizer's file, the longest text, what happens beyond. Pure.

Source: docs/text.md, "The model's parameters".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, cast

from contract.errors import InvalidInput
from contract.model_config import ModelConfig, TensorSpec
from contract.text import EMBEDDING_OUTPUT, ID_INPUTS, IDS, MAX_TOKENS, TEXT_INPUT, TOKENIZER, TRUNCATION, takes_text

Truncation = Literal["right", "left", "none"]
TRUNCATIONS: Final = ("right", "left", "none")
ID_DATATYPES: Final = ("INT64", "INT32")
FLOATS: Final = ("FP16", "FP32", "FP64")


@dataclass(frozen=True, slots=True)
class TextRules:
    """How one model's texts become ids."""

    model: str
    file: str
    """The tokenizer's file, in the version's folder or beside config.pbtxt."""
    inputs: tuple[TensorSpec, ...]
    """Those to fill, each [rows, tokens]."""
    max_tokens: int | None
    """Special tokens included; None takes what the tokenizer's file says."""
    truncation: Truncation | None
    """Which side of a longer text is kept; `none` refuses it; None takes what the tokenizer's file says."""
    width: int | None
    """Tokens per row where the model's input has a fixed size: every text is padded to it."""


def text_rules(config: ModelConfig) -> TextRules | None:
    """The rules of a model with a tokenizer, else None.

    Raises:
        InvalidInput: a parameter out of its range, or inputs that ids don't fit; names it and its value.
    """
    _check_embedding_output(config)
    if not takes_text(config):
        _check_unused(config)
        return None
    if not config.max_batch_size:
        raise InvalidInput(f"parameters['{TOKENIZER}'] needs a batch dimension: max_batch_size is 0")
    if any(spec.name == TEXT_INPUT for spec in config.inputs):
        raise InvalidInput(f"parameters['{TOKENIZER}'] brings an input 'text', but the model has one of that name")
    inputs = tuple(spec for spec in config.inputs if spec.name in ID_INPUTS)
    widths = {_width(spec) for spec in inputs}
    if len(widths) > 1:
        raise InvalidInput(f"parameters['{TOKENIZER}']: inputs {[spec.name for spec in inputs]} have unlike dims")
    truncation = config.parameters.get(TRUNCATION)
    if truncation is not None and truncation not in TRUNCATIONS:
        raise InvalidInput(f"parameters['{TRUNCATION}'] = {truncation!r}, it must be {', '.join(TRUNCATIONS)}")
    width, max_tokens = widths.pop(), _max_tokens(config)
    if width is not None and (max_tokens or 0) > width:
        raise InvalidInput(f"parameters['{MAX_TOKENS}'] = {max_tokens}, input {IDS!r} takes {width}")
    side = cast("Truncation | None", truncation)
    return TextRules(config.name, config.parameters[TOKENIZER], inputs, max_tokens or width, side, width)


def _width(spec: TensorSpec) -> int | None:
    if spec.datatype not in ID_DATATYPES or len(spec.dims) != 1 or spec.reshape is not None:
        raise InvalidInput(
            f"parameters['{TOKENIZER}']: input {spec.name!r} is {spec.datatype} {list(spec.dims)}, "
            f"ids are {' or '.join(ID_DATATYPES)} of one dimension, without reshape"
        )
    return None if spec.dims[0] == -1 else spec.dims[0]


def _max_tokens(config: ModelConfig) -> int | None:
    value = config.parameters.get(MAX_TOKENS)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and int(value) > 1):
        raise InvalidInput(f"parameters['{MAX_TOKENS}'] = {value!r}, it must be a whole number above 1")
    return int(value)


def _check_unused(config: ModelConfig) -> None:
    """A python model may use these names for itself; to any other they would mean nothing."""
    named = [name for name in (TOKENIZER, MAX_TOKENS, TRUNCATION) if name in config.parameters]
    if named and config.backend != "python":
        needs = f"an input {IDS!r}" if config.parameters.get(TOKENIZER) else f"parameters['{TOKENIZER}']"
        raise InvalidInput(f"parameters['{named[0]}'] needs {needs}")


def _check_embedding_output(config: ModelConfig) -> None:
    name = config.parameters.get(EMBEDDING_OUTPUT)
    if name is None:
        return
    if not any(o.name == name and o.datatype in FLOATS and len(o.dims) == 1 for o in config.outputs):
        raise InvalidInput(
            f"parameters['{EMBEDDING_OUTPUT}'] = {name!r}, it must name an output of one dimension in "
            f"{', '.join(FLOATS)}"
        )
