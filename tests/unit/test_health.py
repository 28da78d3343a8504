import pytest

from contract.messages import WorkerBeat
from contract.model_config import ModelCard, ModelConfig, VersionState
from headrace.cluster import Cluster
from headrace.config.settings import HeadraceSettings
from headrace.health import gateway_health, judge_workers, worker_health
from headrace.ports import choose_port


def beat(host: str = "here", group: str = "default", state: str = "serving", **models: str) -> WorkerBeat:
    cards = [
        ModelCard(ModelConfig(name=name, backend="python", platform=""), [VersionState("1", version_state, "")])
        for name, version_state in models.items()
    ]
    return WorkerBeat("w1", group, 0, "0", host, 1, state, cards)


def judged(*beats: WorkerBeat) -> tuple[bool, str]:
    return judge_workers(Cluster(workers={str(n): b for n, b in enumerate(beats)}), "here", "default")


def test_a_worker_whose_models_are_ready_is_healthy() -> None:
    assert judged(beat(a="READY", b="READY")) == (
        True,
        "worker: 1 of 1 processes of here serve; models: 2 ready, 0 loading, 0 failed",
    )


def test_a_model_that_loads_is_waited_for_and_one_that_failed_is_not() -> None:
    assert not judged(beat(a="READY", b="LOADING"))[0]
    assert judged(beat(a="READY", b="UNAVAILABLE"))[0]


def test_workers_of_other_hosts_and_groups_make_nobody_healthy() -> None:
    assert not judged(beat(host="there", a="READY"), beat(group="other", a="READY"))[0]


def test_a_draining_worker_is_not_healthy() -> None:
    assert not judged(beat(state="draining", a="READY"))[0]


async def test_without_a_gateway_or_a_broker_the_line_says_where_it_was_looked_for() -> None:
    port = choose_port("HTTP", 0, host="127.0.0.1", is_fixed=True)
    defaults = HeadraceSettings()
    gateway = defaults.gateway.model_copy(update={"host": "0.0.0.0", "http_port": port})
    broker = defaults.worker.broker.model_copy(update={"servers": [f"nats://127.0.0.1:{port}"]})
    worker = defaults.worker.model_copy(update={"broker": broker})
    settings = defaults.model_copy(update={"gateway": gateway, "worker": worker})
    is_healthy, text = await gateway_health(settings)
    assert (is_healthy, text) == (False, f"gateway: /v2/health/ready on 127.0.0.1:{port} does not answer")
    is_healthy, text = await worker_health(settings)
    assert not is_healthy
    assert f"127.0.0.1:{port}" in text


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_an_address_to_bind_to_is_asked_on_loopback(host: str) -> None:
    defaults = HeadraceSettings()
    gateway = defaults.gateway.model_copy(update={"host": host, "http_port": 9})
    _, text = await gateway_health(defaults.model_copy(update={"gateway": gateway}))
    assert "on 127.0.0.1:9 " in text
