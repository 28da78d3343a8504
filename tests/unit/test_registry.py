import pytest

from gateway.registry import Registry
from tests.support.gateway_kit import beat, card


def test_a_worker_is_dead_after_three_silent_seconds_and_not_before() -> None:
    registry = Registry()
    registry.on_worker_beat(beat("w1", "default", card()), 10.0)
    assert registry.sweep(13.0) == []
    assert [b.worker for b in registry.sweep(13.01)] == ["w1"]
    assert registry.card("default", "tiny") is None


def test_an_equal_heartbeat_is_no_news() -> None:
    registry = Registry()
    registry.on_worker_beat(beat("w1", "default", card()), 0.0)
    before = registry.revision
    registry.on_worker_beat(beat("w1", "default", card()), 1.0)
    assert registry.revision == before
    registry.on_worker_beat(beat("w1", "default", card(versions={"1": "READY", "2": "LOADING"})), 2.0)
    assert registry.revision > before


def test_a_version_is_in_the_best_state_that_any_worker_has_it_in() -> None:
    registry = Registry()
    registry.on_worker_beat(beat("w1", "default", card(versions={"1": "READY", "2": "LOADING"})), 0.0)
    registry.on_worker_beat(beat("w2", "default", card(versions={"2": "READY", "10": "UNAVAILABLE"})), 0.0)
    merged = registry.card("default", "tiny")
    assert merged is not None
    assert [(v.version, v.state) for v in merged.versions] == [("1", "READY"), ("2", "READY"), ("10", "UNAVAILABLE")]


def test_a_draining_worker_serves_nobody_new() -> None:
    registry = Registry()
    registry.on_worker_beat(beat("w1", "default", card()), 0.0)
    assert registry.card("default", "tiny")
    registry.on_worker_beat(beat("w1", "default", card(), state="draining"), 1.0)
    assert registry.card("default", "tiny") is None
    assert registry.remembered("default", "tiny")


def test_no_responders_unserves_the_model_until_the_next_heartbeat() -> None:
    registry = Registry()
    registry.on_worker_beat(beat("w1", "default", card("a"), card("b")), 0.0)
    assert registry.on_no_responders("default", "a")
    assert registry.card("default", "a") is None
    assert registry.card("default", "b")
    assert not registry.on_no_responders("default", "a")
    registry.on_worker_beat(beat("w1", "default", card("a"), card("b")), 1.0)
    assert registry.card("default", "a")


def test_no_responders_of_another_group_changes_nothing() -> None:
    registry = Registry()
    registry.on_worker_beat(beat("w1", "default", card()), 0.0)
    assert not registry.on_no_responders("other", "tiny")
    assert registry.card("default", "tiny")


@pytest.mark.parametrize(("silence_s", "is_late"), [(1.4, False), (1.6, True)])
def test_models_of_a_late_worker_are_worth_asking_for(silence_s: float, is_late: bool) -> None:
    registry = Registry()
    registry.on_worker_beat(beat("w1", "default", card()), 0.0)
    assert registry.late(silence_s) == ({("default", "tiny")} if is_late else set())


def test_nobody_dies_of_our_own_absence() -> None:
    registry = Registry()
    registry.on_worker_beat(beat("w1", "default", card()), 0.0)
    registry.forgive(100.0)
    assert registry.sweep(102.0) == []
    assert registry.sweep(103.1)
