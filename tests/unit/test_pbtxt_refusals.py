"""No field of Triton's ModelConfig is ignored in silence: each is in the table of honoured ones, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from workers.repository import pbtxt
from workers.repository.convert import to_model_config
from workers.repository.honoured import HONOURED, MAP_FIELDS, refusals
from workers.repository.refusal import ConfigRefused


def leaves(descriptor, path: str, above: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Every leaf field of the message, with a value for it in the JSON form."""
    for field in descriptor.fields:
        here = f"{path}.{field.name}".lstrip(".")
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            value = message.fields_by_name["value"]
            if value.message_type is None:
                yield f"{here}.*", "v"
            else:
                yield from leaves(value.message_type, f"{here}.*", above)
        elif message is not None:
            if not message.fields:
                yield here, {}
            elif message.full_name not in above:
                yield from leaves(message, here, (*above, message.full_name))
        else:
            yield here, example(field)


def example(field) -> object:
    if field.enum_type is not None:
        return field.enum_type.values[-1].name
    return {8: True, 9: "v", 2: 0.5, 1: 0.5}.get(field.type, 1)


def all_leaves() -> dict[str, object]:
    from tritonclient.grpc import model_config_pb2

    return dict(leaves(model_config_pb2.ModelConfig.DESCRIPTOR, ""))


def nested(path: str, value: object) -> dict[str, object]:
    """The config that sets just this field."""
    from tritonclient.grpc import model_config_pb2

    def build(descriptor, names: list[str]) -> object:
        if not names:
            return value
        field = descriptor.fields_by_name[names[0]]
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            key = "1" if message.fields_by_name["key"].type != 9 else "k"
            return {field.name: {key: build(message.fields_by_name["value"].message_type, names[2:])}}
        below = build(message, names[1:]) if message is not None else value
        is_list = field.is_repeated if hasattr(field, "is_repeated") else field.label == 3
        return {field.name: [below] if is_list else below}

    found = build(model_config_pb2.ModelConfig.DESCRIPTOR, path.split("."))
    assert isinstance(found, dict)
    return found


def test_the_table_names_only_fields_that_the_message_has() -> None:
    known = all_leaves()
    prefixes = {path.rpartition(".")[0] for path in known}
    assert [path for path in HONOURED if path not in known and path not in prefixes] == []
    assert {
        path.removesuffix(".*") for path in known if ".*" in path and path.count(".*") == 1 and path.endswith(".*")
    } <= MAP_FIELDS


def test_every_field_outside_the_table_is_refused_by_its_name() -> None:
    outside = {path: value for path, value in all_leaves().items() if path not in HONOURED}
    assert len(outside) > 60
    for path, value in outside.items():
        config = nested(path, value)
        pbtxt.without_defaults(config)  # the example is legal
        sentence = next(refusals(config), "")
        assert sentence.split("[")[0].split(" = ")[0].split(".")[0] == path.split(".")[0], path
        assert "is not supported" in sentence


def test_every_field_in_the_table_passes() -> None:
    for path, value in all_leaves().items():
        if path in HONOURED:
            assert list(refusals(nested(path, value))) == [], path


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sequence_batching { }", "sequence_batching = {} is not supported: sequences"),
        ("ensemble_scheduling { step { model_name: 'a' } }", "ensemble_scheduling = "),
        ("model_transaction_policy { decoupled: true }", "decoupled models are not served"),
        ("response_cache { enable: true }", "there is no response cache"),
        ('cc_model_filenames { key: "7.5" value: "x" }', "cc_model_filenames = "),
        ('input { name: "X" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }', "input[0].is_shape_tensor = true"),
        ("instance_group { rate_limiter { priority: 2 } }", "instance_group[0].rate_limiter"),
        ('instance_group { } instance_group { host_policy: "h" }', 'instance_group[1].host_policy = "h"'),
        ("optimization { cuda { graphs: true } }", "optimization.cuda"),
        ("optimization { input_pinned_memory { enable: true } }", "the backends keep no pinned buffers"),
        ('runtime: "x.so"', 'runtime = "x.so" is not supported'),
        ('batch_input { target_name: "a" }', "batch_input"),
    ],
)
def test_a_refusal_names_field_value_and_reason(text: str, named: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        to_model_config(pbtxt.parse(f'backend: "python" {text}', "f"), "m")
    assert named in str(refused.value)


def test_pinned_memory_that_is_switched_off_is_honoured() -> None:
    text = 'backend: "python" optimization { input_pinned_memory { enable: false } }'
    assert to_model_config(pbtxt.parse(text, "f"), "m").name == "m"
