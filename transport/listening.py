"""Interest in a subject over a real connection: how it ends. The client keeps the callbacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transport.client import FastClient


class Listening:
    """Interest in a subject."""

    def __init__(self, client: FastClient, sid: int) -> None:
        self._client = client
        self._sid = sid

    async def unsubscribe(self) -> None:
        """Stop at once: no callback runs afterwards."""
        self._client.leave(self._sid)
        self._client.forget(self._sid)

    async def drain(self) -> None:
        """Take nothing new, call back for what is on its way; returns when nothing more can come."""
        self._client.leave(self._sid)
        try:
            if self._client.is_up:
                await self._client.ping()
        finally:
            self._client.forget(self._sid)
