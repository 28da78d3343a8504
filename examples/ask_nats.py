"""Ask a model over NATS with nats-py alone: python examples/ask_nats.py [nats://HOST:PORT]"""

import asyncio
import json
import sys

import nats

TEXTS = ["have a nice day", "you are an idiot"]
SUBJECT = "infer.default.default.toxicity"  # infer.<tenant>.<service>.<model>, see subjects.md


async def main() -> None:
    request = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(TEXTS), 1], "data": TEXTS}]}
    connection = await nats.connect(sys.argv[1] if len(sys.argv) > 1 else "nats://127.0.0.1:4222")
    reply = await connection.request(SUBJECT, json.dumps(request).encode(), timeout=5)
    await connection.close()
    outputs = {output["name"]: output["data"] for output in json.loads(reply.data)["outputs"]}
    for text, label, score in zip(TEXTS, outputs["label"], outputs["score"], strict=True):
        print(f"{'toxic' if label else 'fine'}  {score:.3f}  {text}")


asyncio.run(main())
