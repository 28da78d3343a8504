import pytest

from contract.errors import Forbidden, ModelNotReady, NotFound, NoWorker
from contract.model_config import UNLOADED, ModelCard, VersionState
from contract.principal import DEFAULT_PRINCIPAL, Principal
from gateway.registry import Registry
from gateway.router import Router
from gateway.settings import ServiceSettings
from tests.support.gateway_kit import beat, card

SERVICES = {
    "default": ServiceSettings(),
    "two": ServiceSettings(groups=["fast", "slow"], models={"pinned": "slow"}),
}


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def router(registry: Registry) -> Router:
    return Router(SERVICES, "default", registry, lambda: 100_000)


def resolve(router: Router, model: str, service: str = "", version: str = "") -> str:
    return router.resolve(DEFAULT_PRINCIPAL, service, model, version).group


def test_the_first_group_that_serves_the_model_is_taken(router: Router, registry: Registry) -> None:
    registry.on_worker_beat(beat("w1", "slow", card("m")), 0.0)
    assert resolve(router, "m", "two") == "slow"
    registry.on_worker_beat(beat("w2", "fast", card("m")), 0.0)
    assert resolve(router, "m", "two") == "fast"


def test_a_pinned_model_goes_to_its_group_only(router: Router, registry: Registry) -> None:
    registry.on_worker_beat(beat("w1", "fast", card("pinned")), 0.0)
    with pytest.raises(NotFound):
        resolve(router, "pinned", "two")
    registry.on_worker_beat(beat("w2", "slow", card("pinned")), 0.0)
    assert resolve(router, "pinned", "two") == "slow"


def test_the_service_is_the_requests_then_the_keys_then_the_configured_one(router: Router, registry: Registry) -> None:
    registry.on_worker_beat(beat("w1", "slow", card("m")), 0.0)
    registry.on_worker_beat(beat("w2", "default", card("m")), 0.0)
    keyed = Principal("acme", "k", default_service="two")
    assert router.resolve(keyed, "", "m", "").group == "slow"
    assert router.resolve(keyed, "default", "m", "").group == "default"
    assert resolve(router, "m") == "default"


def test_an_unknown_service_and_an_unknown_model_are_not_found(router: Router) -> None:
    with pytest.raises(NotFound, match="service 'nope'"):
        resolve(router, "m", "nope")
    with pytest.raises(NotFound, match="model 'm'"):
        resolve(router, "m")


def test_a_model_that_nobody_serves_any_more_has_no_worker(router: Router, registry: Registry) -> None:
    registry.on_worker_beat(beat("w1", "default", card("m")), 0.0)
    assert resolve(router, "m") == "default"
    registry.sweep(10.0)
    with pytest.raises(NoWorker, match="'m'"):
        resolve(router, "m")
    with pytest.raises(NoWorker):
        resolve(router, "m", version="1")
    with pytest.raises(NotFound, match="it has: 1"):
        resolve(router, "m", version="7")


def test_a_model_is_remembered_though_nobody_asked_while_it_lived(router: Router, registry: Registry) -> None:
    registry.on_worker_beat(beat("w1", "default", card("m")), 0.0)
    registry.sweep(10.0)
    with pytest.raises(NoWorker):
        resolve(router, "m")


@pytest.mark.parametrize(
    ("state", "words"), [("LOADING", r"is loading \(last time: because"), ("UNAVAILABLE", "unavailable: because")]
)
def test_a_model_that_is_not_ready_says_why(router: Router, registry: Registry, state: str, words: str) -> None:
    registry.on_worker_beat(beat("w1", "default", card("m", {"1": state})), 0.0)  # type: ignore[dict-item]
    with pytest.raises(ModelNotReady, match=words):
        resolve(router, "m")


def _tell(registry: Registry, *versions: VersionState, unloaded: dict[str, str] | None = None) -> None:
    told = beat("w1", "default", *([ModelCard(card("m").config, versions)] if versions else []))
    told.unloaded = unloaded or {}
    registry.on_worker_beat(told, 0.0)


def test_a_model_that_loads_says_for_how_long(router: Router, registry: Registry) -> None:
    dropped, failed = VersionState("1", "UNAVAILABLE", UNLOADED), VersionState("2", "UNAVAILABLE", "no such layer")
    _tell(registry, dropped, failed, VersionState("3", "LOADING", since_unix_ms=88_000))
    with pytest.raises(ModelNotReady, match="version 3 is loading, for 12 s so far"):
        resolve(router, "m")
    _tell(registry, dropped, failed)
    with pytest.raises(ModelNotReady, match="version 2 is unavailable: no such layer"):
        resolve(router, "m")
    _tell(registry, VersionState("", "UNAVAILABLE", "no config"))
    with pytest.raises(ModelNotReady, match="model 'm' is unavailable: no config"):
        resolve(router, "m")


@pytest.mark.parametrize(("reason", "words"), [("", "is not loaded"), (UNLOADED, "is unloaded")])
def test_a_model_that_waits_in_the_repository_is_not_ready(router, registry, reason, words) -> None:
    _tell(registry, unloaded={"m": reason})
    with pytest.raises(ModelNotReady, match=words):
        resolve(router, "m")


def test_what_workers_say_they_unloaded_is_gone_unless_somebody_still_has_it(registry: Registry) -> None:
    key = ("default", "m")
    _tell(registry, VersionState("1", "UNAVAILABLE", UNLOADED), VersionState("2", "READY"))
    assert registry.unloaded_versions() == {key: {"1"}}
    registry.on_worker_beat(beat("w2", "default", card("m", {"1": "UNLOADING"})), 0.0)
    assert registry.unloaded_versions() == {}
    registry.on_worker_beat(beat("w2", "default", card("m", {"2": "READY"})), 0.0)
    _tell(registry, unloaded={"m": UNLOADED})
    assert registry.unloaded_versions() == {}
    registry.on_worker_beat(beat("w2", "default"), 0.0)
    assert registry.unloaded_versions() == {key: {""}}
    _tell(registry, unloaded={"m": ""})
    assert registry.unloaded_versions() == {}, "what was never loaded was not unloaded"
    _tell(registry, VersionState("1", "UNAVAILABLE", "it failed"))
    assert registry.unloaded_versions() == {}, "what failed may come with the next try"


def test_a_pinned_version_must_be_ready_and_known(router: Router, registry: Registry) -> None:
    registry.on_worker_beat(beat("w1", "default", card("m", {"1": "READY", "2": "LOADING"})), 0.0)
    assert router.resolve(DEFAULT_PRINCIPAL, "", "m", "1").version == "1"
    assert resolve(router, "m") == "default"
    with pytest.raises(ModelNotReady, match="version 2 is loading"):
        resolve(router, "m", version="2")
    with pytest.raises(NotFound, match="no version '3', it has: 1, 2"):
        resolve(router, "m", version="3")


def test_a_target_is_found_once_per_revision(router: Router, registry: Registry) -> None:
    registry.on_worker_beat(beat("w1", "default", card("m")), 0.0)
    first = router.resolve(DEFAULT_PRINCIPAL, "", "m", "")
    registry.on_worker_beat(beat("w1", "default", card("m")), 1.0)
    assert router.resolve(DEFAULT_PRINCIPAL, "", "m", "") is first
    registry.on_worker_beat(beat("w2", "default", card("m")), 1.0)
    assert router.resolve(DEFAULT_PRINCIPAL, "", "m", "") is not first


def test_models_are_those_the_service_can_reach(router: Router, registry: Registry) -> None:
    registry.on_worker_beat(beat("w1", "fast", card("pinned"), card("m")), 0.0)
    registry.on_worker_beat(beat("w2", "default", card("m")), 0.0)
    assert [(g, c.config.name) for g, c in router.models("two")] == [("fast", "m")]
    assert [(g, c.config.name) for g, c in router.models("")] == [("default", "m"), ("fast", "m")]
    assert router.groups == ["default", "fast", "slow"]


def test_a_name_that_a_key_may_not_use_is_forbidden_whether_it_exists_or_not(
    router: Router, registry: Registry
) -> None:
    registry.on_worker_beat(beat("w1", "default", card("mine"), card("theirs")), 0.0)
    caller = Principal("acme", "web", models=frozenset({"mine"}))
    assert router.resolve(caller, "", "mine", "").group == "default"
    words = set()
    for name in ("theirs", "nobody-has-it"):
        with pytest.raises(Forbidden) as refused:
            router.resolve(caller, "", name, "")
        words.add(refused.value.message.replace(name, "…"))
    assert words == {"key 'web' may not use model '…'"}
