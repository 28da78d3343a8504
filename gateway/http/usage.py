"""`GET /v1/usage`: a tenant's own usage by day; for role admin everybody's. Counts nothing."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from contract.errors import InvalidInput, NotSupported
from gateway.http.front import Front
from gateway.http.routing import RawRoute
from gateway.usage.account import grouped
from gateway.usage.book import UsageBook

MAX_DAYS: Final = 92
GROUPS: Final = ("day", "tenant", "key", "model")


def usage_routes(front: Front, book: UsageBook | None) -> list[BaseRoute]:
    """The route."""

    async def usage(request: Request) -> Response:
        principal = front.principal(request)
        if book is None:
            raise NotSupported("this gateway keeps no usage")
        asked = request.query_params
        first, last = days_asked(asked.get("from"), asked.get("to"), datetime.now(UTC).date())
        by = groups_asked(asked.get("group_by"))
        tenant = None if "admin" in principal.roles else principal.tenant
        await book.flush()  # what this gateway answered is in what it says
        days = [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]
        counts = [(day, await book.read(day, tenant)) for day in days]
        told = {"from": first.isoformat(), "to": last.isoformat(), "usage": grouped(counts, by)}
        return front.json(request, told)

    return [RawRoute("/v1/usage", usage)]


def days_asked(first: str | None, last: str | None, today: date) -> tuple[date, date]:
    """Both days included; today where none is given. Raises InvalidInput."""
    try:
        to = date.fromisoformat(last) if last else today
        start = date.fromisoformat(first) if first else to
    except ValueError:
        raise InvalidInput("from and to are days like 2026-01-31") from None
    if not 0 <= (to - start).days < MAX_DAYS:
        raise InvalidInput(f"from {start} to {to} must be 1 to {MAX_DAYS} days")
    return start, to


def groups_asked(text: str | None) -> tuple[str, ...]:
    """All four where none is given. Raises InvalidInput."""
    asked = tuple(dict.fromkeys(text.split(","))) if text else GROUPS
    for name in asked:
        if name not in GROUPS:
            raise InvalidInput(f"group_by is some of {', '.join(GROUPS)}, not {name[:32]!r}")
    return asked
