"""A tokenizer of a few words that needs no file, its encoder, and requests with text."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from contract.messages import Layout, TensorHead
from contract.model_config import DynamicBatching, ModelConfig, TensorSpec
from contract.tensors import encode_elements
from workers.text.encode import TextEncoder
from workers.text.load import prepared
from workers.text.rules import text_rules

WORDS = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "river": 5, "stream": 6, "flows": 7}


def word_tokenizer() -> Any:
    """Splits at spaces; each text between [CLS] and [SEP]."""
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def text_model(
    *, dims: int = -1, datatype: str = "INT64", inputs: tuple[str, ...] = (), **parameters: str
) -> ModelConfig:
    names = inputs or ("input_ids", "attention_mask")
    return ModelConfig(
        "m",
        "double",
        max_batch_size=8,
        inputs=tuple(TensorSpec(name, datatype, (dims,), is_ragged=dims == -1) for name in names),
        outputs=(TensorSpec("OUT", "FP32", (2,)),),
        dynamic_batching=DynamicBatching(),
        parameters={"tokenizer": "tokenizer.json", **parameters},
    )


def encoder(config: ModelConfig | None = None, **parameters: str) -> TextEncoder:
    rules = text_rules(config or text_model(**parameters))
    assert rules is not None
    return prepared(word_tokenizer(), rules)


def text_request(*texts: str | bytes) -> tuple[Layout, list[bytes]]:
    raw = [text if isinstance(text, bytes) else text.encode() for text in texts]
    return Layout((TensorHead("text", "BYTES", (len(raw),)),)), [encode_elements(raw)]
