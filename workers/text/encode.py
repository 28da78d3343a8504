"""Texts to the id arrays a model wants. Pure; loads no tokenizer (load.py) and queues nothing (texts.py).

Rows are padded with zeros to the longest of their request, as the batcher pads requests to the longest of their
micro-batch; `attention_mask` says which are tokens.

Invariants: what passes is a request as if its caller had tokenised (tests/unit/test_text_encode.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from contract.errors import InvalidInput, TextTooLong
from contract.messages import Layout
from contract.tensors import NUMPY_TYPES, Array, decode_elements, from_array
from contract.text import IDS, MASK, TEXT_INPUT
from workers.items import Buffer
from workers.text.rules import TextRules

MAX_TEXT_BYTES: Final = 1024 * 1024
"""One text; its tokenising takes about two seconds. Models read far less."""


class Tokens(Protocol):
    """One tokenised text."""

    @property
    def ids(self) -> list[int]:
        """Its ids, special tokens included, no padding."""

    @property
    def overflowing(self) -> Sequence[object]:
        """What was cut off; empty where nothing was."""


class Tokenizer(Protocol):
    """What we use of `tokenizers.Tokenizer`, set to cut and not to pad."""

    def encode_batch_fast(self, texts: list[str]) -> Sequence[Tokens]:
        """Each text's tokens, in order."""


@dataclass(frozen=True, slots=True)
class EncodedText:
    """A request's texts as the model's inputs."""

    layout: Layout
    data: list[Buffer]
    num_tokens: int
    """Of all texts, special tokens included."""
    num_truncated: int
    """Texts that were longer than the model reads."""


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """One model version's tokenizer and rules."""

    tokenizer: Tokenizer
    rules: TextRules
    max_tokens: int | None
    """The rules' or the tokenizer file's."""
    refuses_longer: bool
    vocabulary: int
    """One more than the highest id."""

    def encode(self, layout: Layout, data: Sequence[Buffer]) -> EncodedText:
        """The request with ids in place of `text`; other inputs stay.

        Raises:
            InvalidInput: a text that is not UTF-8 or too large; names its row.
            TextTooLong: it has too many tokens, and nothing is cut.
        """
        at = next(i for i, tensor in enumerate(layout.tensors) if tensor.name == TEXT_INPUT)
        texts = read_texts(data[at], layout.tensors[at].shape[0])
        tokens = self.tokenizer.encode_batch_fast(texts)
        rows = [found.ids for found in tokens]
        if self.refuses_longer:
            self._check_lengths(rows)
        filled = [from_array(name, array) for name, array in self._fill(rows)]
        others = [(t, d) for i, (t, d) in enumerate(zip(layout.tensors, data, strict=True)) if i != at]
        heads = (*(head for head, _ in filled), *(head for head, _ in others))
        num_truncated = sum([bool(found.overflowing) for found in tokens])
        parts: list[Buffer] = [*(part for _, part in filled), *(part for _, part in others)]
        return EncodedText(Layout(heads), parts, sum([len(ids) for ids in rows]), num_truncated)

    def check_ids(self, layout: Layout, data: Sequence[Buffer]) -> None:
        """Raises InvalidInput for an id of the caller's that no text could have: the model has no row for it."""
        for tensor, part in zip(layout.tensors, data, strict=True):
            if tensor.name != IDS:
                continue
            ids = np.frombuffer(part, NUMPY_TYPES[tensor.datatype])
            if ids.size and (ids.min() < 0 or ids.max() >= self.vocabulary):
                wrong = int(ids.max() if ids.min() >= 0 else ids.min())
                raise InvalidInput(
                    f"input {IDS!r}: id {wrong}, the tokenizer of model {self.rules.model!r} has ids 0 to "
                    f"{self.vocabulary - 1}"
                )

    def _fill(self, rows: Sequence[Sequence[int]]) -> list[tuple[str, Array]]:
        """Each of the model's id inputs as [rows, tokens]."""
        longest = self.rules.width or max(1, *(len(ids) for ids in rows))
        inputs = [(spec.name, np.zeros((len(rows), longest), NUMPY_TYPES[spec.datatype])) for spec in self.rules.inputs]
        for name, array in inputs:
            for row, ids in enumerate(rows):
                if name == IDS:
                    array[row, : len(ids)] = ids
                elif name == MASK:
                    array[row, : len(ids)] = 1
        return inputs

    def _check_lengths(self, rows: Sequence[Sequence[int]]) -> None:
        limit = self.max_tokens
        for row, ids in enumerate(rows):
            if limit is not None and len(ids) > limit:
                raise TextTooLong(
                    f"input {TEXT_INPUT!r}, row {row}: {len(ids)} tokens, "
                    f"model {self.rules.model!r} reads at most {limit} and cuts no text (truncation: none)"
                )


def read_texts(data: Buffer, rows: int) -> list[str]:
    """The texts of a BYTES tensor.

    Raises:
        InvalidInput: an element that is not UTF-8, or over MAX_TEXT_BYTES; names its row.
    """
    texts = []
    for row, element in enumerate(decode_elements(TEXT_INPUT, data, rows)):
        if len(element) > MAX_TEXT_BYTES:
            raise InvalidInput(
                f"input {TEXT_INPUT!r}, row {row}: {len(element)} bytes, at most {MAX_TEXT_BYTES} are taken"
            )
        try:
            texts.append(element.decode())
        except UnicodeDecodeError as e:
            raise InvalidInput(f"input {TEXT_INPUT!r}, row {row}: byte {e.start} is not UTF-8") from None
    return texts
