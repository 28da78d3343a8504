"""Peer: Mosec, dynamic batching to MAX_BATCH rows after at most one millisecond, its shortest wait."""

import os

import mosec
import orjson
from ort_model import OrtModel


class Worker(mosec.Worker):
    def __init__(self):
        self.model = OrtModel(os.environ["MODEL"])

    def deserialize(self, data):
        return orjson.loads(data)

    def serialize(self, data):
        return orjson.dumps(data)

    def forward(self, data):
        return self.model.run(data) if isinstance(data, list) else self.model.run([data])[0]


if __name__ == "__main__":
    server = mosec.Server()
    server.append_worker(
        Worker,
        num=int(os.environ.get("WORKERS", "1")),
        max_batch_size=int(os.environ.get("MAX_BATCH", "32")),
        max_wait_time=1,
    )
    server.run()
