"""Keys to principals: tenants.yaml and the `Authorization` header. Opens no door, logs no key.

    tenants:
      acme:
        default_service: default
        keys:
          - id: acme-web
            sha256: <64 hex digits: printf %s "$KEY" | sha256sum>
            roles: [infer]
            highest_lane: norm
        models: [toxicity]   # all, where it is not given

Without a file every caller is tenant `default`, and the doors may bind to loopback only.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from contract.errors import InvalidInput, Unauthenticated
from contract.principal import DEFAULT_PRINCIPAL, Principal, Role
from contract.subjects import Lane, check_name
from gateway.watched import RefusedFile, WatchedFile

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class IdentityError(RefusedFile):
    """The tenants file can't be used, or the doors would be open to strangers; the message says where and why."""


class KeySettings(BaseModel):
    """One key of a tenant; the key itself is nowhere, only its SHA-256."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(min_length=1, max_length=64, description="Name of the key in logs and limits.")
    sha256: str = Field(pattern=r"^[0-9a-fA-F]{64}$", description="SHA-256 of the key, 64 hex digits.")
    roles: list[Role] = Field(default=["infer"], min_length=1, description="What the key may do: infer, batch, admin.")
    highest_lane: Lane = Field(default="norm", description="Highest priority lane its requests may take: hi or norm.")


class TenantSettings(BaseModel):
    """One tenant."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    default_service: str = Field(default="", description="Service of requests that name none; empty: the gateway's.")
    models: list[str] | None = Field(default=None, description="Models its keys may use; null is all.")
    broker_password_bcrypt: str = Field(
        default="",
        pattern=r"^(\$2[aby]\$\d\d\$[./A-Za-z0-9]{53})?$",
        description="bcrypt hash of the password of its NATS clients; empty: it has none. `headrace nats-config`.",
    )
    keys: list[KeySettings] = Field(min_length=1, description="Its keys.")


class TenantsFile(BaseModel):
    """The whole of tenants.yaml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tenants: dict[str, TenantSettings] = Field(min_length=1, description="Tenants by name.")

    @field_validator("tenants")
    @classmethod
    def _names_are_legal(cls, tenants: dict[str, TenantSettings]) -> dict[str, TenantSettings]:
        for name in tenants:
            try:
                check_name(name, "tenant")
            except InvalidInput as e:
                raise ValueError(e.message) from None
        return tenants


class Identity:
    """Who a key belongs to."""

    def __init__(self, principals: dict[str, Principal] | None) -> None:
        """`principals` by lower-case hex SHA-256 of the key; None lets everybody in as `default`."""
        self._secret = secrets.token_bytes(32)
        self._principals = None if principals is None else self._sealed(principals)

    @property
    def is_open(self) -> bool:
        """Whether callers need no key."""
        return self._principals is None

    def identify(self, authorization: str | None) -> Principal:
        """The caller with this `Authorization` header.

        What is looked up is a digest under a secret of this process: the time that takes says nothing about any key.

        Raises:
            Unauthenticated: no key, another scheme than Bearer, or a key nobody knows.
        """
        if self._principals is None:
            return DEFAULT_PRINCIPAL
        if not authorization:
            raise Unauthenticated("a key is needed: Authorization: Bearer <key>")
        scheme, _, key = authorization.partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthenticated("the Authorization header must read: Bearer <key>")
        digest = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        principal = self._principals.get(self._seal(digest))
        if principal is None:
            raise Unauthenticated("the key is not known")
        return principal

    def replace(self, principals: dict[str, Principal]) -> dict[str, object]:
        """From now on these keys and no others; says what changed. Requests that run are not asked again.

        Only for one that was made with keys: to need keys, or need none any more, takes a restart.
        """
        assert self._principals is not None, "a door that is open to all has no keys to replace"
        before, after = self._principals, self._sealed(principals)
        self._principals = after
        return {
            "num_keys": len(after),
            "num_added": len(after.keys() - before.keys()),
            "num_removed": len(before.keys() - after.keys()),
            "num_changed": sum(before[seal] != principal for seal, principal in after.items() if seal in before),
        }

    def _sealed(self, principals: dict[str, Principal]) -> dict[bytes, Principal]:
        return {self._seal(bytes.fromhex(digest)): principal for digest, principal in principals.items()}

    def _seal(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=32).digest()

    def identify_tenant(self, authorization: str | None, tenant: str) -> Principal:
        """The caller, who says which tenant it is.

        Raises:
            Unauthenticated: as `identify`, and a key of another tenant reads like one that nobody knows.
        """
        principal = self.identify(authorization)
        if not hmac.compare_digest(principal.tenant.encode(), tenant.encode()):
            raise Unauthenticated("the key is not known")
        return principal


def load_identity(path: Path | None) -> Identity:
    """The callers that a tenants file names; without one everybody is `default`.

    Raises:
        IdentityError: unreadable, unknown fields, wrong values, a key twice; names file and line.
    """
    return Identity(None if path is None else load_principals(path))


def watch_identity(path: Path, identity: Identity) -> WatchedFile[dict[str, Principal]]:
    """The tenants file, whose keys replace those of `identity` when it changes."""
    return WatchedFile("tenants", [path], lambda: load_principals(path), identity.replace)


def load_principals(path: Path) -> dict[str, Principal]:
    """Callers by lower-case hex SHA-256 of their key. Raises IdentityError as `load_identity`."""
    root, parsed = _read(path)
    return _principals(path, root, parsed)


def load_tenants(path: Path) -> dict[str, TenantSettings]:
    """What the file says of each tenant. Raises IdentityError as `load_identity`."""
    root, parsed = _read(path)
    _principals(path, root, parsed)
    return parsed.tenants


def _read(path: Path) -> tuple[yaml.Node, TenantsFile]:
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=_LOADER)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise IdentityError(f"{path}: {e}") from None
    if root is None:
        raise IdentityError(f"{path}: the file is empty, it must have `tenants:`")
    _refuse_duplicates(path, root)
    try:
        parsed = TenantsFile.model_validate(yaml.constructor.SafeConstructor().construct_document(root))
    except yaml.YAMLError as e:
        raise IdentityError(f"{path}: {e}") from None
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise IdentityError(f"{path}:{_line(root, first['loc'])}: {where}: {first['msg']}") from None
    return root, parsed


def check_binding(host: str, identity: Identity) -> None:
    """Without keys the doors stay on this machine.

    Raises:
        IdentityError: `host` can be reached from elsewhere and no tenants file is configured.
    """
    if identity.is_open and not _is_loopback(host):
        raise IdentityError(
            f"host {host!r} can be reached from other machines and nobody needs a key: "
            "set `tenants_file`, or bind to 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _principals(path: Path, root: yaml.Node, parsed: TenantsFile) -> dict[str, Principal]:
    found: dict[str, Principal] = {}
    ids: set[tuple[str, str]] = set()
    for tenant, settings in parsed.tenants.items():
        for number, key in enumerate(settings.keys):
            loc = ("tenants", tenant, "keys", number)
            digest = key.sha256.lower()
            if digest in found:
                other = found[digest]
                raise IdentityError(
                    f"{path}:{_line(root, (*loc, 'sha256'))}: key {key.id!r} of tenant {tenant!r} has the same sha256 "
                    f"as key {other.key_id!r} of tenant {other.tenant!r}"
                )
            if (tenant, key.id) in ids:
                raise IdentityError(f"{path}:{_line(root, (*loc, 'id'))}: tenant {tenant!r} has key {key.id!r} twice")
            ids.add((tenant, key.id))
            models = None if settings.models is None else frozenset(settings.models)
            found[digest] = Principal(
                tenant, key.id, frozenset(key.roles), key.highest_lane, settings.default_service, models
            )
    return found


def _line(node: yaml.Node, loc: tuple[Hashable, ...]) -> int:
    """Line, from 1, of the deepest node on the way to `loc`."""
    line = node.start_mark.line
    for part in loc:
        below: yaml.Node | None = None
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == part:
                    line, below = key.start_mark.line, value
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            below = node.value[part]
            line = below.start_mark.line
        if below is None:
            break
        node = below
    return line + 1


def _refuse_duplicates(path: Path, node: yaml.Node) -> None:
    """YAML would silently take the last of two equal keys."""
    children: list[Any] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise IdentityError(f"{path}:{key.start_mark.line + 1}: {name!r} is there twice")
            seen.add(name)
            children.append(value)
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    for child in children:
        _refuse_duplicates(path, child)
