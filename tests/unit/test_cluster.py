import time

from contract.messages import GatewayBeat, WorkerBeat
from contract.model_config import ModelCard, ModelConfig, ModelState, ModelStats, TensorSpec, VersionState
from headrace.cluster import Cluster, Readiness, readiness
from headrace.status import gateway_rows, instance_rows, model_rows, worker_rows


def card(name: str, state: ModelState, reason: str = "") -> ModelCard:
    config = ModelConfig(name, "onnxruntime", max_batch_size=8, inputs=(TensorSpec("text", "BYTES", (1,)),))
    return ModelCard(config, (VersionState("1", state, reason),))


def worker(name: str, *cards: ModelCard, state: str = "serving", stats: tuple[ModelStats, ...] = ()) -> WorkerBeat:
    started_ms = int(time.time() * 1000) - 65_000
    return WorkerBeat(name, "default", started_ms, "0.1.0", "host", 1, state, list(cards), list(stats), 2**20)


def cluster(*workers: WorkerBeat) -> Cluster:
    return Cluster({w.worker: w for w in workers}, {"g": GatewayBeat("g", 0, "0.1.0", "host", 2, "serving", 3, "h:1")})


def test_a_model_is_ready_once_one_worker_has_it() -> None:
    state = readiness(cluster(worker("a", card("m", "READY")), worker("b", card("m", "LOADING"), state="starting")))
    assert state == Readiness(1, ("m",), (), ())


def test_a_model_that_no_worker_could_load_has_failed_for_its_reason() -> None:
    state = readiness(cluster(worker("a", card("m", "UNAVAILABLE", "no file"), card("n", "READY"))))
    assert state.failed == (("m", "no file"),)
    assert state.ready == ("n",)


def test_a_model_that_another_worker_still_loads_has_not_failed() -> None:
    state = readiness(cluster(worker("a", card("m", "UNAVAILABLE", "x")), worker("b", card("m", "LOADING"))))
    assert state == Readiness(2, (), (), ("m",))


def test_status_tables_show_what_the_beats_say() -> None:
    stats = ModelStats("m", "1", num_success=5, num_pending=1, num_in_hand=2, num_credits=3, num_instances=2)
    seen = cluster(worker("a", card("m", "READY"), stats=(stats,)))
    now_s = time.time()
    assert gateway_rows(seen, now_s)[0][:6] == ("g", "serving", "h:1", "host", "2", "3")
    assert worker_rows(seen, now_s)[0][:7] == ("a", "default", "serving", "host", "1", "1 MiB", "1 of 1 ready")
    assert worker_rows(seen, now_s)[0][7].startswith("1 min ")
    assert instance_rows(seen) == [("a", "m", "1", "1", "2", "3", "0/2", "5", "0")]
    assert model_rows(seen) == [("default", "m", "1", "READY", "onnxruntime", "8", "text BYTES[1]", "", "")]
