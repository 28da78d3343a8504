"""A target that computes nothing: answers each request with ANSWER_BYTES after DELAY_S seconds."""

import asyncio
import os

DELAY_S = float(os.environ["DELAY_S"])
BODY = b"x" * int(os.environ["ANSWER_BYTES"])
HEADERS = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(BODY))]


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(DELAY_S)
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    await send({"type": "http.response.body", "body": BODY})
