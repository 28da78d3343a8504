"""Builds what every request passes in the gateway as C extensions, with mypyc; pure Python unless asked.

    HEADRACE_COMPILE=1 pip wheel --no-build-isolation --no-deps .

The same files run either way: docs/decisions/0009-one-source-two-speeds.md.
"""

import os

from setuptools import setup

COMPILED = (
    "gateway/admission.py",
    "gateway/cancels.py",
    "gateway/coalescer.py",
    "gateway/core.py",
    "gateway/dispatch.py",
    "gateway/inflight.py",
    "gateway/outbox.py",
    "gateway/receiver.py",
    "gateway/replies.py",
    "gateway/router.py",
    "gateway/http/counters.py",
    "gateway/http/doorway.py",
    "gateway/http/exchange.py",
    "gateway/http/headers.py",
    "gateway/http/protocol.py",
    "gateway/http/turns.py",
    "gateway/oip/decode.py",
    "gateway/oip/encode.py",
    "gateway/oip/json_numbers.py",
    "gateway/oip/plan.py",
)
"""Modules of the hot path that hold no msgspec or pydantic class: mypyc can't build those."""


def extensions() -> list:
    """The extensions, or none."""
    if os.environ.get("HEADRACE_COMPILE") != "1":
        return []
    from mypyc.build import mypycify

    return mypycify(["--strict", *COMPILED], opt_level="3")


setup(ext_modules=extensions())
