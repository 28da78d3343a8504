"""Which models take text in place of token ids, and under which names. Pure; tokenises nothing (workers/text does).

A model whose config has the parameter `tokenizer` and takes token ids accepts the BYTES input `text` instead of them:
one text per row, shape [rows] or [rows, 1]. Its other inputs stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from contract.messages import TensorHead
from contract.model_config import ModelConfig, TensorSpec

TEXT_INPUT: Final = "text"
IDS: Final = "input_ids"
MASK: Final = "attention_mask"
TYPES: Final = "token_type_ids"
ID_INPUTS: Final = (IDS, MASK, TYPES)
"""Inputs that a tokenizer fills; names as Hugging Face exports have them."""
TOKENIZER: Final = "tokenizer"
MAX_TOKENS: Final = "max_tokens"
TRUNCATION: Final = "truncation"
EMBEDDING_OUTPUT: Final = "embedding_output"
"""Names of the model parameters."""
NUM_TOKENS: Final = "num_tokens"
NUM_TRUNCATED: Final = "num_truncated"
"""Response parameters: tokens the request's texts became, and how many of the texts were cut (absent for none)."""


def takes_text(config: ModelConfig) -> bool:
    """Whether the model has a tokenizer for its ids; a model without `input_ids` may use the parameter for itself."""
    return bool(config.parameters.get(TOKENIZER)) and any(spec.name == IDS for spec in config.inputs)


def has_text(config: ModelConfig, tensors: Sequence[TensorHead]) -> bool:
    """Whether these inputs hold text in place of ids."""
    return takes_text(config) and any(tensor.name == TEXT_INPUT for tensor in tensors)


def text_specs(config: ModelConfig, rank: int) -> tuple[TensorSpec, ...]:
    """The inputs of a request with text of so many dimensions (1 or 2): `text` first, then those not tokenised."""
    text = TensorSpec(TEXT_INPUT, "BYTES", () if rank == 1 else (1,))
    return (text, *(spec for spec in config.inputs if spec.name not in ID_INPUTS))
