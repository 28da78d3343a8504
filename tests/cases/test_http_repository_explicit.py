"""The model repository through tritonclient, against a real gateway and workers in explicit mode."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.support.cluster import Gateway, cluster
from tests.support.cluster_http import HOST

KEPT = "ident_f32"
OTHER = "ident_i32"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Each test leaves the models as it found them."""
    with cluster(tmp_path_factory.mktemp("explicit")) as place:
        found, _ = place.serve(KEPT, num_workers=2, model_control_mode="explicit", allow_model_upload=True)
        yield found


@pytest.fixture
def client(gateway: Gateway) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"{HOST}:{gateway.http_port}", network_timeout=60) as found:
        yield found


def states(client: triton.InferenceServerClient, model: str) -> list[str]:
    return [e.get("state", "") for e in client.get_model_repository_index() if e["name"] == model]


def infer(client: triton.InferenceServerClient, model: str, values: np.ndarray, datatype: str) -> np.ndarray:
    tensor = triton.InferInput("INPUT0", list(values.shape), datatype)
    tensor.set_data_from_numpy(values)
    found = client.infer(model, [tensor]).as_numpy("OUTPUT0")
    assert found is not None
    return found


def test_a_model_is_loaded_asked_unloaded_and_loaded_again(client: triton.InferenceServerClient) -> None:
    assert states(client, KEPT) == ["READY"]
    assert states(client, OTHER) in ([""], [])
    assert not client.is_model_ready(OTHER)
    numbers = np.array([[1, 2, 3, 4]], np.int32)
    for _ in range(2):
        client.load_model(OTHER)
        assert client.is_model_ready(OTHER)
        assert states(client, OTHER) == ["READY"]
        np.testing.assert_array_equal(infer(client, OTHER, numbers, "INT32"), numbers)
        client.unload_model(OTHER)
        assert not client.is_model_ready(OTHER)
        assert "READY" not in states(client, OTHER)
        with pytest.raises(InferenceServerException) as caught:
            infer(client, OTHER, numbers, "INT32")
        assert caught.value.status() in {"404", "503"}
    assert client.is_model_ready(KEPT)


def test_a_model_that_nobody_has_is_404(client: triton.InferenceServerClient) -> None:
    for ask in (client.load_model, client.unload_model):
        with pytest.raises(InferenceServerException, match="no_such_model") as caught:
            ask("no_such_model")
        assert caught.value.status() == "404"


def test_a_config_that_comes_with_the_load_is_what_serves(client: triton.InferenceServerClient) -> None:
    config = client.get_model_config(KEPT)
    assert config["max_batch_size"] == 8
    client.load_model(KEPT, config=json.dumps({**config, "max_batch_size": 3}))
    assert client.get_model_config(KEPT)["max_batch_size"] == 3
    values = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(infer(client, KEPT, values, "FP32"), values)
    with pytest.raises(InferenceServerException) as caught:
        infer(client, KEPT, np.ones((4, 2), np.float32), "FP32")
    assert caught.value.status() == "400"
    client.load_model(KEPT)
    assert client.get_model_config(KEPT)["max_batch_size"] == 8


def test_a_config_that_can_not_be_is_refused_and_what_serves_goes_on(client: triton.InferenceServerClient) -> None:
    for config in ("{", '{"max_batch_size": "many"}', '{"max_batch_sice": 3}'):
        with pytest.raises(InferenceServerException) as caught:
            client.load_model(KEPT, config=config)
        assert caught.value.status() == "400", config
    values = np.ones((8, 2), np.float32)
    np.testing.assert_array_equal(infer(client, KEPT, values, "FP32"), values)
