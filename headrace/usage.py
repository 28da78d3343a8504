"""`headrace usage`: what `GET /v1/usage` says, as a table or CSV. Counts nothing."""

from __future__ import annotations

import csv
import json
import sys
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

from headrace.tables import print_table

TIMEOUT_S = 60.0


class UsageRefused(Exception):
    """The gateway can't be reached or said no; the text says which."""


def read_usage(url: str, key: str, first: str, last: str, group_by: str) -> list[dict[str, Any]]:
    """The gateway's rows. Raises UsageRefused."""
    asked = {name: value for name, value in (("from", first), ("to", last), ("group_by", group_by)) if value}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/usage?{urlencode(asked)}", headers=headers)  # noqa: S310 - the caller's own gateway
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as above
            rows: list[dict[str, Any]] = json.load(answer)["usage"]
            return rows
    except urllib.error.HTTPError as e:
        with e:
            raise UsageRefused(f"{e.code}: {e.read(4096).decode('utf-8', 'replace')}") from None
    except (OSError, ValueError, KeyError) as e:
        raise UsageRefused(f"no usage from {url}: {e}") from None


def print_usage(rows: list[dict[str, Any]], *, as_csv: bool) -> None:
    """One line each under the names of the columns."""
    if not rows:
        if not as_csv:
            sys.stdout.write("no usage\n")
        return
    columns = tuple(rows[0])
    lines = [tuple(str(row[name]) for name in columns) for row in rows]
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *lines])
    else:
        print_table("", columns, lines)
