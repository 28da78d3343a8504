"""Ask a model with NVIDIA's Triton client, unchanged: python examples/ask_triton.py [HOST:PORT]"""

import sys

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

TEXTS = ["have a nice day", "you are an idiot"]

client = InferenceServerClient(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8000")
text = InferInput("text", [len(TEXTS), 1], "BYTES")
text.set_data_from_numpy(np.array([[t] for t in TEXTS], object), binary_data=True)
wanted = [InferRequestedOutput(name, binary_data=True) for name in ("label", "score")]
answer = client.infer("toxicity", [text], outputs=wanted)
client.close()

labels, scores = answer.as_numpy("label"), answer.as_numpy("score")
for message, label, score in zip(TEXTS, labels.flat, scores.flat, strict=True):
    print(f"{'toxic' if label else 'fine'}  {score:.3f}  {message}")
