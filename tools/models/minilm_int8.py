"""MiniLM with INT8 weights: version 1's graph through ONNX Runtime's quantiser. Trains and calibrates nothing.

Weights are quantised per output channel, activations while the model runs, over all rows of a micro-batch: so a row's
answer depends a little on the rows beside it, which is why version 1 stays what a request without a version gets.
"""

from __future__ import annotations

import logging
from pathlib import Path

import onnx
from minilm import model, tokenizer_text
from onnxruntime.quantization import QuantType, quantize_dynamic


def build(folder: Path) -> None:
    """Write `model.onnx` and `tokenizer.json` into `folder`."""
    # It advises a preparation (symbolic shapes, fused operators) that this graph has no use for.
    logging.getLogger().setLevel(logging.ERROR)
    quantize_dynamic(model(), folder / "model.onnx", weight_type=QuantType.QInt8, per_channel=True)
    onnx.checker.check_model(folder / "model.onnx")
    (folder / "tokenizer.json").write_text(tokenizer_text(), encoding="utf-8")
