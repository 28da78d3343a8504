"""Peer: FastAPI + ONNX Runtime, one request at a time; the tiny model inline, the other in the thread pool."""

import os

import orjson
from fastapi import FastAPI, Request, Response
from ort_model import OrtModel
from starlette.concurrency import run_in_threadpool

app = FastAPI()
NAME = os.environ["MODEL"]
MODEL = OrtModel(NAME)


def _infer(body):
    return orjson.dumps(MODEL.run([orjson.loads(body)])[0])


@app.get("/health")
def health():
    return {}


@app.post("/predict")
async def predict(request: Request):
    body = await request.body()
    answer = _infer(body) if NAME == "add_sub" else await run_in_threadpool(_infer, body)
    return Response(answer, media_type="application/json")
