"""Routes matched on the raw path, so that an encoded slash stays in a name; which methods a path takes. No answers.

Starlette decodes a path before it matches; here `team%2Fa` is one model's name and never two steps of a path.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from gateway.http.paths import path_name

_WORDS: Final = {"model": "model name", "version": "model version", "id": "request id", "region": "region name"}
_ORDER: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


class RawRoute(Route):
    """A Starlette route whose `{parameters}` are names: percent-decoded after the match, and checked.

    `matches` raises InvalidInput where one is no name: bad encoding, control characters, too long.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """As Starlette's, on the raw path."""
        if scope["type"] != "http":
            return Match.NONE, {}
        found = self.path_regex.match(scope["raw_path"].decode("latin-1"))
        if found is None:
            return Match.NONE, {}
        names = {
            what: path_name(raw.encode("latin-1"), _WORDS.get(what, what)) for what, raw in found.groupdict().items()
        }
        is_taken = not self.methods or scope["method"] in self.methods
        return Match.FULL if is_taken else Match.PARTIAL, {"endpoint": self.endpoint, "path_params": names}


def allowed_methods(routes: Iterable[BaseRoute], scope: Scope) -> tuple[str, ...]:
    """What the path of `scope` takes over all routes, for `Allow`; OPTIONS is taken everywhere."""
    found = {"OPTIONS"}
    for route in routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return tuple(sorted(found, key=_ORDER.index))
