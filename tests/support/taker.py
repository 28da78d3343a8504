"""A worker's hand for lane tests: takes deliveries, counts their rows, settles when told."""

from __future__ import annotations

from tests.support.waiting import Inbox, until
from transport.base import Delivery


class Taker:
    """`on_delivery` of a lane; a payload is its number of rows in digits, then anything behind a space."""

    def __init__(self, *, settles: bool = False) -> None:
        self.got: Inbox = Inbox()
        self.rows = 0
        self.most_rows = 0
        self._settles = settles

    def __call__(self, delivery: Delivery) -> int:
        self.got.append(delivery)
        if self._settles:
            delivery.ack()
            return 0
        rows = rows_of(delivery)
        self.rows += rows
        self.most_rows = max(self.most_rows, self.rows)
        return rows

    @property
    def payloads(self) -> list[bytes]:
        return [d.payload for d in self.got]

    async def has(self, count: int, within_s: float = 15.0) -> None:
        await until(lambda: len(self.got) >= count, within_s)


def rows_of(delivery: Delivery) -> int:
    return int(delivery.payload.split(b" ")[0])
