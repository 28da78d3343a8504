import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from contract.model_config import TensorSpec
from contract.tensors import NUMPY_TYPES, to_array
from tests.support.batcher_kit import make_config, make_item
from workers.batcher import Batcher
from workers.collate import split, stack


@st.composite
def requests(draw, *, is_ragged: bool):
    """Specs of one or two tensors, and requests of 1 to 4 rows each that may be joined."""
    specs, shapes = [], []
    num_dims = draw(st.lists(st.integers(0 if not is_ragged else 1, 2), min_size=1, max_size=2))
    for i, n in enumerate(num_dims):
        datatype = draw(st.sampled_from([*NUMPY_TYPES, "BYTES"]))
        specs.append(TensorSpec(f"T{i}", datatype, (-1,) * n, is_ragged=is_ragged))
        shapes.append(draw(st.tuples(*[st.integers(0, 4)] * n)))
    arrays = []
    for _ in range(draw(st.integers(1, 6))):
        rows = draw(st.integers(1, 4))
        inner = [draw(st.tuples(*[st.integers(1, 4)] * len(s))) for s in shapes] if is_ragged else shapes
        arrays.append({spec.name: draw(array(spec, (rows, *own))) for spec, own in zip(specs, inner, strict=True)})
    return tuple(specs), arrays


def array(spec: TensorSpec, shape: tuple[int, ...]):
    if spec.datatype == "BYTES":
        return hnp.arrays(object, shape, elements=st.binary(max_size=5), fill=st.just(b""))
    return hnp.arrays(NUMPY_TYPES[spec.datatype], shape)


def run_identity(specs, arrays) -> None:
    config = make_config(64, inputs=specs, outputs=tuple(TensorSpec(s.name, s.datatype, s.dims) for s in specs))
    items = [make_item(n, own, rows=len(next(iter(own.values())))) for n, own in enumerate(arrays)]
    for item, spec_heads in ((item, item.layout.tensors) for item in items):  # BF16 arrays look like UINT16
        heads = [type(h)(h.name, s.datatype, h.shape) for h, s in zip(spec_heads, specs, strict=True)]
        item.layout = type(item.layout)(tuple(heads))
    batcher = Batcher(config)
    for item in items:
        assert batcher.offer(item, 0.0) is None
    assert len({item.batch_key for item in items}) == 1
    for item, (layout, data) in zip(items, split(stack(items, config), items, config), strict=True):
        assert layout == item.layout
        assert [bytes(part) for part in data] == [bytes(part) for part in item.data]


@given(requests(is_ragged=False))
def test_an_identity_model_gives_everyone_back_its_own_bytes(case):
    run_identity(*case)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=6))
def test_padding_that_was_put_on_comes_off_again(sizes):
    specs = (TensorSpec("T", "INT64", (-1, -1), is_ragged=True),)
    rng = np.random.default_rng(0)
    arrays = [{"T": rng.integers(1, 9, (rows, w, n))} for rows, w, n in sizes]
    run_identity(specs, arrays)


@given(requests(is_ragged=True))
def test_padded_inputs_hold_every_request_and_zeros(case):
    specs, arrays = case
    config = make_config(64, inputs=specs)
    items = [make_item(n, own, rows=len(next(iter(own.values())))) for n, own in enumerate(arrays)]
    for name, joined in stack(items, config).items():
        at = 0
        rest = joined.copy()
        for item, own in zip(items, arrays, strict=True):
            place = (slice(at, at + item.rows), *map(slice, own[name].shape[1:]))
            np.testing.assert_array_equal(joined[place], own[name])
            rest[place] = b"" if joined.dtype == object else 0
            at += item.rows
        assert at == len(joined)
        assert not rest.any()


@given(st.data())
def test_a_row_goes_back_to_the_request_it_came_from(data):
    rows = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    items = [make_item(n, rows=count) for n, count in enumerate(rows)]
    config = make_config(64)
    results = split({"OUT": stack(items, config)["IN"]}, items, config)
    for item, (layout, parts) in zip(items, results, strict=True):
        assert to_array(layout.tensors[0], parts[0]).tolist() == [[item.key[1]] * 2] * item.rows
