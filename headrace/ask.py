"""`headrace infer`: values typed on a command line to a request, an answer to lines. Over HTTP or NATS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from contract.errors import HeadraceError, InvalidInput, Unavailable, from_wire
from contract.subjects import DoorAddress
from contract.tensors import Array
from headrace.client import Client
from headrace.oip import InputSpec, Result, as_tensor, decode_answer, encode_json


def parse_inputs(pairs: Sequence[str], texts: Sequence[str], specs: Mapping[str, InputSpec]) -> dict[str, Any]:
    """`name=value` pairs and texts as values by input name.

    Raises:
        InvalidInput: no such input, no `=`, or texts for a model without exactly one BYTES input.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InvalidInput(f"--input {pair!r} has the form --input NAME=VALUE")
        if name not in specs:
            raise InvalidInput(f"the model has no input {name!r}, it has {', '.join(sorted(specs))}")
        is_text = specs[name].datatype == "BYTES" and not value.startswith("[")
        values[name] = value if is_text else _typed(value)
    if texts:
        names = [n for n, s in specs.items() if s.datatype == "BYTES" and n not in values]
        if len(names) != 1:
            raise InvalidInput(f"--text needs a model with one BYTES input, this one has {len(names)}: use --input")
        values[names[0]] = list(texts)
    missing = [n for n in specs if n not in values]
    if missing and not values:
        raise InvalidInput(f"nothing to ask: give --input for {', '.join(missing)}, or --text")
    return values


def ask_http(
    url: str, model: str, pairs: Sequence[str], texts: Sequence[str], *, version: str, timeout_s: float, key: str
) -> Result:
    """The answer of the gateway at `url`."""
    with Client(url, key=key, timeout_s=timeout_s) as client:
        values = parse_inputs(pairs, texts, client.input_specs(model, version))
        return client.infer(model, values, version=version)


def ask_nats(broker_url: str, model: str, pairs: Sequence[str], texts: Sequence[str], *, timeout_s: float) -> Result:
    """The answer through the NATS door, as tenant and service `default`."""
    return asyncio.run(_ask_nats(broker_url, model, pairs, texts, timeout_s))


async def _ask_nats(
    broker_url: str, model: str, pairs: Sequence[str], texts: Sequence[str], timeout_s: float
) -> Result:
    from headrace.cluster import look
    from transport.base import NoResponders, TransportError
    from transport.connection import connect
    from transport.settings import BrokerSettings

    subject = DoorAddress("default", "default", model).subject
    try:
        transport = await connect(BrokerSettings(servers=[broker_url]), name="headrace-infer")
        try:
            cards = [c for b in (await look(transport)).workers.values() for c in b.models if c.config.name == model]
            if not cards:
                raise from_wire("not-found", f"no worker on {broker_url} offers model {model!r}")
            config = cards[0].config
            batch = (-1,) if config.max_batch_size else ()
            specs = {i.name: InputSpec(i.name, i.datatype, (*batch, *i.dims)) for i in config.inputs}
            values = parse_inputs(pairs, texts, specs)
            tensors = {n: (specs[n].datatype, as_tensor(v, specs[n])) for n, v in values.items()}
            body = json.dumps(encode_json(tensors)).encode()
            answer = await transport.request(subject, body, timeout_s)
        finally:
            await transport.close()
    except NoResponders:
        raise Unavailable(f"no gateway listens on {subject} at {broker_url}") from None
    except (TransportError, OSError) as e:
        raise Unavailable(f"{broker_url}: {e}") from None
    return _read_answer(answer)


def _read_answer(answer: bytes) -> Result:
    found = json.loads(answer)
    if "error" in found:
        raise _error(found)
    return decode_answer(answer, None)


def _error(found: Mapping[str, Any]) -> HeadraceError:
    return from_wire(str(found.get("code", "internal-error")), str(found["error"]))


def lines_of(result: Result, *, as_json: bool) -> Iterable[str]:
    """An answer as JSON, or a line per output."""
    plain = {name: _plain(_shortest(array).tolist()) for name, array in result.outputs.items()}
    if as_json:
        yield json.dumps({"model": result.model, "version": result.version, "id": result.id, "outputs": plain})
        return
    width = max((len(name) for name in plain), default=0)
    for name, values in plain.items():
        yield f"{name:<{width}}  {json.dumps(values, ensure_ascii=False)}"


def _shortest(array: Array) -> Array:
    """Small floats as the shortest numbers that mean them: 0.1, not 0.10000000149011612."""
    return array.astype(str).astype(np.float64) if array.dtype in (np.float16, np.float32) else array


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _typed(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
