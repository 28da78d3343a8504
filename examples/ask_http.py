"""Ask a model with Headrace's own client: python examples/ask_http.py [URL]"""

import sys

from headrace.client import Client

TEXTS = ["have a nice day", "you are an idiot"]

with Client(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000") as client:
    outputs = client.infer("toxicity", text=TEXTS).outputs

for text, label, score in zip(TEXTS, outputs["label"].flat, outputs["score"].flat, strict=True):
    print(f"{'toxic' if label else 'fine'}  {score:.3f}  {text}")
