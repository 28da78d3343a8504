"""A deterministic stand-in for an embedding model: a unit vector made of the SHA-256 of the text."""

import hashlib

import numpy as np
import triton_python_backend_utils as pb_utils


def embedding(text: bytes) -> np.ndarray:
    """Eight numbers; equal texts have equal ones."""
    words = np.frombuffer(hashlib.sha256(text).digest(), "<u4").astype(np.float64) / 2**31 - 1
    return (words / np.linalg.norm(words)).astype(np.float32)


class TritonPythonModel:
    """TEXT [rows, 1] to EMBEDDING [rows, 8]."""

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            vectors = np.stack([embedding(text) for text in texts.reshape(-1)])
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("EMBEDDING", vectors)]))
        return responses
