"""Counts in Redis or Valkey, which all gateways share: one script, limits.lua, decides a whole call at once.

Standalone or behind Sentinel, TLS, ACL users. A Redis Cluster is refused: the limits of one request lie on different
nodes there, and no script may span them. The client library is imported when a store is opened.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gateway.limits.settings import LimitsSettings
from gateway.limits.store import Admit, Operation, Settle, StoreAway, StoreUnusable
from gateway.limits.verdict import Decision, Level, Limit

SCRIPT: Final = resources.files("gateway.limits").joinpath("limits.lua").read_text(encoding="utf-8")
SENTINEL_SCHEMES: Final = ("redis+sentinel", "rediss+sentinel")
SENTINEL_PORT: Final = 26379
_ADMIT, _LOOK, _SETTLE, _RENEW = 0, 1, 2, 3

_decode = msgspec.msgpack.Decoder().decode
_encode = msgspec.msgpack.Encoder().encode


class RedisStore:
    """A store that gateways share."""

    def __init__(self, settings: LimitsSettings, *, script: str = SCRIPT) -> None:
        """`script`: limits.lua, or for tests a copy of it with another clock."""
        self._settings = settings
        self._script = script
        self._sha = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        self._lease_us = int(settings.lease_s * 1_000_000)
        self._timeout_s = settings.timeout_ms / 1000
        self._client: Any = None

    async def start(self) -> None:
        """See `Store.start`."""
        if self._client is None:
            self._client = open_client(self._settings)
        found = await self._ask("INFO", "cluster")
        if found.get("cluster_enabled"):
            raise StoreUnusable(
                f"{_shown(self._settings.store)} is a node of a Redis Cluster: the limits of one request would lie on "
                "different nodes, which no atomic script can span. Use one Redis or Valkey, with Sentinel for failover"
            )

    async def call(self, operations: Sequence[Operation]) -> list[Decision]:
        """See `Store.call`."""
        keys, body = encode_call(operations, self._lease_us)
        try:
            raw = await self._ask("EVALSHA", self._sha, len(keys), *keys, body)
        except _NoScript:
            raw = await self._ask("EVAL", self._script, len(keys), *keys, body)
        return [
            Decision(bool(answer[0]), tuple([Level(level, int(wait)) for level, wait in answer[1:]]))
            for answer in _decode(raw)
        ]

    async def close(self) -> None:
        """See `Store.close`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def _ask(self, *command: Any) -> Any:
        from redis.exceptions import NoScriptError, RedisError

        if self._client is None:
            raise StoreAway("the store was not opened")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._client.execute_command(*command)
        except NoScriptError:
            raise _NoScript from None
        except (RedisError, OSError, TimeoutError) as e:
            raise StoreAway(f"{_shown(self._settings.store)}: {str(e) or type(e).__name__}") from None


class _NoScript(Exception):
    """The server lost its scripts: it restarted, or another one took over."""


def encode_call(operations: Sequence[Operation], lease_us: int) -> tuple[list[str], bytes]:
    """KEYS and ARGV[1] of limits.lua."""
    numbers: dict[str, int] = {}
    limits: list[tuple[int, float, float]] = []
    keys: list[str] = []

    def number(limit: Limit) -> int:
        found = numbers.get(limit.key)
        if found is None:
            found = numbers[limit.key] = len(numbers) + 1
            limits.append((limit.kind, limit.rate_per_us, limit.capacity))
            keys.extend((limit.key, f"{limit.key}:leases"))
        return found

    coded = []
    for op in operations:
        if isinstance(op, Admit):
            what = _LOOK if op.is_dry else _ADMIT
        else:
            what = _SETTLE if isinstance(op, Settle) else _RENEW
        used = op.used if isinstance(op, Settle) else (0,) * len(op.demands)
        demands = [(number(d.limit), d.amount, u) for d, u in zip(op.demands, used, strict=True)]
        coded.append((what, op.lease, demands))
    return keys, _encode((lease_us, limits, coded))


def open_client(settings: LimitsSettings) -> Any:
    """A client that connects when it is first used. Raises StoreUnusable for a URL or a file that is none."""
    try:
        import redis.asyncio
        from redis.asyncio.retry import Retry
        from redis.asyncio.sentinel import Sentinel
        from redis.backoff import NoBackoff
    except ImportError:
        raise StoreUnusable("a limit store needs the package redis: pip install 'headrace[limits]'") from None
    url = urlsplit(settings.store)
    is_tls = url.scheme.startswith("rediss")
    options = _options(settings, is_tls=is_tls) | {"retry": Retry(NoBackoff(), 0)}
    if url.scheme not in SENTINEL_SCHEMES:
        try:
            return redis.asyncio.Redis.from_url(settings.store, **options)
        except ValueError as e:
            raise StoreUnusable(f"gateway.limits.store: {e}") from None
    name, _, db = url.path.strip("/").partition("/")
    if not name or (db and not db.isdigit()):
        raise StoreUnusable("gateway.limits.store must read redis+sentinel://host:port,host:port/name/db")
    sentinel_options = {k: v for k, v in options.items() if k not in ("username", "password")}
    if settings.sentinel_password_file is not None:
        sentinel_options["password"] = _first_line(settings.sentinel_password_file)
    if is_tls:
        options["ssl"] = sentinel_options["ssl"] = True
    sentinel = Sentinel(_hosts(url.netloc), sentinel_kwargs=sentinel_options, **options)  # type: ignore[no-untyped-call]
    return sentinel.master_for(name, db=int(db or 0))


def _options(settings: LimitsSettings, *, is_tls: bool) -> dict[str, Any]:
    timeout_s = settings.timeout_ms / 1000
    options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    if settings.user:
        options["username"] = settings.user
    if settings.password_file is not None:
        options["password"] = _first_line(settings.password_file)
    if is_tls:
        files = {
            "ssl_ca_certs": settings.tls_ca_file,
            "ssl_certfile": settings.tls_cert_file,
            "ssl_keyfile": settings.tls_key_file,
        }
        options |= {name: str(path) for name, path in files.items() if path is not None}
    return options


def _hosts(netloc: str) -> list[tuple[str, int]]:
    hosts = []
    for part in netloc.split(","):
        host, _, port = part.rpartition(":") if ":" in part else (part, "", str(SENTINEL_PORT))
        hosts.append((host.strip("[]"), int(port)))
    return hosts


def _first_line(path: Any) -> str:
    try:
        lines: list[str] = path.read_text(encoding="utf-8").splitlines()
    except OSError as e:
        raise StoreUnusable(f"{path}: {e.strerror}") from None
    if not lines or not lines[0]:
        raise StoreUnusable(f"{path}: the first line is empty, it must be the password")
    return lines[0]


def _shown(url: str) -> str:
    """The URL without what a password may be in."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
