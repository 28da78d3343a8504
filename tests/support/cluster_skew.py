"""Runs a part as one minor format version newer: every message has a field at its end that this version does not know.

python tests/support/cluster_skew.py workers.worker | gateway.app     settings on stdin, as always
"""

from __future__ import annotations

import importlib
import sys

import msgspec

sys.path.insert(0, ".")

from contract import messages

NEWER = 1
"""The newer minor version."""


class LaterResultHead(messages.ResultHead, array_like=True):
    later: str = "of a newer version"


class LaterReplyMessage(messages.ReplyMessage, array_like=True):
    results: list[LaterResultHead]
    later: tuple[int, ...] = (1, 2, 3)


class LaterRequestHead(messages.RequestHead, array_like=True):
    later: dict[str, int] = msgspec.field(default_factory=lambda: {"new": 1})


class LaterRequestMessage(messages.RequestMessage, array_like=True):
    requests: list[LaterRequestHead]
    later: str = "of a newer version"


class LaterCancelMessage(messages.CancelMessage, array_like=True):
    later: bool = True


class LaterWorkerBeat(messages.WorkerBeat):
    later: list[str] = msgspec.field(default_factory=lambda: ["new"])


class LaterGatewayBeat(messages.GatewayBeat):
    later: list[str] = msgspec.field(default_factory=lambda: ["new"])


def main(module: str) -> object:
    """Patch the messages before anybody imports them by name, then run."""
    for name, later in list(globals().items()):
        if name.startswith("Later"):
            setattr(messages, name.removeprefix("Later"), later)
    envelope = importlib.import_module("contract.envelope")
    envelope.FORMAT_MINOR = NEWER  # type: ignore[attr-defined]
    return importlib.import_module(module).main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
