# ruff: noqa: ASYNC240 - small files of the test's own
import hashlib
from pathlib import Path

import pytest

from contract.errors import Unauthenticated
from contract.principal import DEFAULT_PRINCIPAL
from gateway.identity import Identity, IdentityError, check_binding, load_identity, watch_identity


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


FILE = f"""\
tenants:
  acme:
    default_service: moderation
    keys:
      - id: web
        sha256: {digest("acme-secret")}
        roles: [infer, batch]
        highest_lane: hi
  globex:
    keys:
      - id: app
        sha256: {digest("globex-secret").upper()}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tenants.yaml"
    file.write_text(FILE)
    return file


def test_a_key_names_its_tenant_roles_lane_and_service(path: Path) -> None:
    principal = load_identity(path).identify("Bearer acme-secret")
    assert (principal.tenant, principal.key_id, principal.default_service) == ("acme", "web", "moderation")
    assert principal.roles == {"infer", "batch"}
    assert principal.highest_lane == "hi"
    other = load_identity(path).identify("bearer  globex-secret ")
    assert (other.tenant, other.roles, other.highest_lane) == ("globex", {"infer"}, "norm")


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic acme-secret", "acme-secret", "Bearer nope"])
def test_anything_else_is_unauthenticated(path: Path, header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        load_identity(path).identify(header)


def test_the_sha256_itself_is_no_key(path: Path) -> None:
    with pytest.raises(Unauthenticated):
        load_identity(path).identify(f"Bearer {digest('acme-secret')}")


def test_another_tenants_key_reads_like_an_unknown_one(path: Path) -> None:
    identity = load_identity(path)
    assert identity.identify_tenant("Bearer acme-secret", "acme").tenant == "acme"
    with pytest.raises(Unauthenticated) as foreign:
        identity.identify_tenant("Bearer acme-secret", "globex")
    with pytest.raises(Unauthenticated) as unknown:
        identity.identify_tenant("Bearer nope", "globex")
    assert foreign.value.message == unknown.value.message


def test_without_a_file_everybody_is_default() -> None:
    identity = load_identity(None)
    assert identity.is_open
    assert identity.identify(None) is DEFAULT_PRINCIPAL
    with pytest.raises(Unauthenticated):
        identity.identify_tenant(None, "acme")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("roles:", "rolls:", r":7: tenants.acme.keys.0.rolls: Extra"),
        ("[infer, batch]", "[infer, root]", r":7: tenants.acme.keys.0.roles.1"),
        ("highest_lane: hi", "highest_lane: top", r":8: tenants.acme.keys.0.highest_lane"),
        ("  globex:", "  acme:", r":9: 'acme' is there twice"),
        (digest("globex-secret").upper(), digest("acme-secret"), r":12: key 'app' of tenant 'globex' has the same"),
        (digest("acme-secret"), "acme-secret", r":6: tenants.acme.keys.0.sha256"),
        ("tenants:", "tenant:", r":1: "),
        ("    keys:\n      - id: web", "    keys: [\n      - id: web", r"tenants.yaml: "),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(path: Path, old: str, new: str, words: str) -> None:
    path.write_text(FILE.replace(old, new))
    with pytest.raises(IdentityError, match=words):
        load_identity(path)


def test_a_missing_or_empty_file_is_refused(path: Path) -> None:
    path.write_text("")
    with pytest.raises(IdentityError, match="empty"):
        load_identity(path)
    with pytest.raises(IdentityError, match="nowhere"):
        load_identity(path.with_name("nowhere.yaml"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_without_keys_the_doors_may_bind_to_loopback(host: str) -> None:
    check_binding(host, Identity(None))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.1", "example.com"])
def test_without_keys_the_doors_may_not_bind_elsewhere(host: str, path: Path) -> None:
    with pytest.raises(IdentityError, match="tenants_file"):
        check_binding(host, Identity(None))
    check_binding(host, load_identity(path))


def test_the_example_file_runs_as_it_is() -> None:
    identity = load_identity(Path(__file__).parents[2] / "configs/examples/tenants.yaml")
    web = identity.identify("Bearer acme-example-key")
    assert (web.tenant, web.key_id, web.highest_lane, web.roles) == ("acme", "web", "hi", {"infer"})
    assert identity.identify("Bearer backfill-example-key").roles == {"infer", "batch"}


async def test_a_rotated_key_works_without_a_restart_and_a_bad_line_leaves_the_old_keys(path: Path) -> None:
    identity = load_identity(path)
    watched = watch_identity(path, identity)
    path.write_text(FILE.replace(digest("acme-secret"), digest("acme-new")))
    assert await watched.reload()
    assert identity.identify("Bearer acme-new").key_id == "web"
    with pytest.raises(Unauthenticated):
        identity.identify("Bearer acme-secret")
    path.write_text(FILE.replace("highest_lane: hi", "highest_lane: top"))
    assert not await watched.reload()
    assert f"{path}:8: " in watched.refusal
    assert identity.identify("Bearer acme-new").highest_lane == "hi"


def test_a_tenants_models_are_its_keys(path: Path) -> None:
    path.write_text(FILE.replace("  acme:\n", "  acme:\n    models: [toxicity]\n"))
    identity = load_identity(path)
    acme, globex = identity.identify("Bearer acme-secret"), identity.identify("Bearer globex-secret")
    assert (acme.may_use("toxicity"), acme.may_use("other"), globex.may_use("other")) == (True, False, True)
