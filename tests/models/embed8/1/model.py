"""A deterministic stand-in for an embedding model: a unit vector made of the SHA-256 of the text.

A text that holds `#666` raises, so that tests see what becomes of the others.
"""

import hashlib

import numpy as np
import triton_python_backend_utils as pb_utils


def embedding(text: bytes) -> np.ndarray:
    """Eight numbers; equal texts have equal ones."""
    words = np.frombuffer(hashlib.sha256(text).digest(), "<u4").astype(np.float64) / 2**31 - 1
    return (words / np.linalg.norm(words)).astype(np.float32)


class TritonPythonModel:
    """input_ids, attention_mask [rows, tokens] to EMBEDDING [rows, 8]."""

    def execute(self, requests):
        responses = []
        for request in requests:
            ids = pb_utils.get_input_tensor_by_name(request, "input_ids").as_numpy()
            mask = pb_utils.get_input_tensor_by_name(request, "attention_mask").as_numpy()
            texts = [bytes(row[: own.sum()].astype(np.uint8)) for row, own in zip(ids, mask, strict=True)]
            if any(b"#666" in text for text in texts):
                responses.append(pb_utils.InferenceResponse(error=pb_utils.TritonError("#666 is not embedded")))
                continue
            vectors = np.stack([embedding(text) for text in texts])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", vectors)]))
        return responses
