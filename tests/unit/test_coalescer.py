from contract.envelope import unpack
from contract.messages import RequestMessage, TensorHead
from contract.principal import DEFAULT_PRINCIPAL
from contract.subjects import Lane
from gateway.admission import Admission, Ticket
from gateway.coalescer import MAX_IDLE_LANES, Coalescer, cut, pack_requests
from gateway.core import Target
from gateway.inflight import Entry, Inflight
from tests.support.gateway_kit import EAGER, card, infer_request

TINY = Target("default", "default", card(), "")


class Bench:
    def __init__(self) -> None:
        self.coalescer = Coalescer()
        self.admission = Admission(1_000_000, 1 << 40)
        self.inflight = Inflight(lambda _entry, _is_settled: None)

    def entry(self, target: Target = TINY, lane: Lane = "norm", **request: object) -> Entry:
        made = infer_request(**request)  # type: ignore[arg-type]
        size = len(made.data[0])
        ticket = self.admission.admit(DEFAULT_PRINCIPAL, size, made.deadline_s, 0.0)
        assert isinstance(ticket, Ticket)
        queue = self.coalescer.lane(target, lane)
        return self.inflight.add(queue, made, lambda _outcome: None, ticket, body_bytes=size, now_s=1.0)


def ids(pieces: list[list[Entry]]) -> list[list[int]]:
    return [[e.id for e in piece] for piece in pieces]


def test_a_flush_is_asked_for_once_per_tick() -> None:
    bench = Bench()
    other = Target("default", "default", card("other"), "")
    firsts = [bench.coalescer.add(bench.entry(t)) for t in (TINY, TINY, other, TINY)]
    assert firsts == [True, False, False, False]
    assert len(bench.coalescer.take()) == 2
    assert bench.coalescer.take() == []
    assert bench.coalescer.add(bench.entry())


def test_a_message_never_mixes_lanes_or_versions() -> None:
    bench = Bench()
    pinned = Target("default", "default", TINY.card, "1")
    for target, lane in ((TINY, "norm"), (TINY, "hi"), (pinned, "norm")):
        bench.coalescer.add(bench.entry(target, lane))  # type: ignore[arg-type]
    subjects = [lane.subject for lane, _ in bench.coalescer.take()]
    assert subjects == ["q.0.default.tiny.any.norm", "q.0.default.tiny.any.hi", "q.0.default.tiny.1.norm"]


def test_what_ended_before_the_flush_is_left_out() -> None:
    bench = Bench()
    gone, stays = bench.entry(), bench.entry()
    bench.coalescer.add(gone)
    bench.coalescer.add(stays)
    gone.cancel()
    assert bench.coalescer.take() == [(stays.lane, [stays])]


def test_what_was_withdrawn_goes_out_once_when_it_is_added_again() -> None:
    bench = Bench()
    entry = bench.entry()
    bench.coalescer.add(entry)
    bench.coalescer.withdraw("other")
    bench.coalescer.withdraw("default")
    assert not bench.coalescer.add(entry)
    assert [entries for _, entries in bench.coalescer.take() if entries] == [[entry]]


def test_rows_bound_a_message() -> None:
    bench = Bench()
    entries = [bench.entry(rows=rows, data=bytes(4 * rows)) for rows in (3, 3, 3, 8, 1, 20, 1)]
    assert [[e.request.rows for e in piece] for piece in cut(entries, 8)] == [[3, 3], [3], [8], [1], [20], [1]]


def test_bytes_bound_a_message() -> None:
    bench = Bench()
    entries = [bench.entry(data=bytes(30 * 1024)) for _ in range(5)] + [bench.entry(data=bytes(500 * 1024))]
    assert [len(piece) for piece in cut(entries, 1000)] == [2, 2, 1, 1]


def test_an_eager_models_requests_travel_alone() -> None:
    bench = Bench()
    eager = Target("default", "default", card("eager", dynamic_batching=EAGER), "")
    entries = [bench.entry(eager) for _ in range(3)]
    assert entries[0].lane.max_rows == 1
    assert ids(list(cut(entries, entries[0].lane.max_rows))) == [[e.id] for e in entries]


def test_a_lane_follows_its_models_config() -> None:
    bench = Bench()
    assert bench.entry().lane.max_rows == 8
    assert bench.entry(Target("default", "default", card(max_batch_size=32), "")).lane.max_rows == 32


def test_a_message_says_everything_once() -> None:
    bench = Bench()
    wide = TensorHead("x", "FP32", (1, 8))
    entries = [
        bench.entry(data=b"a" * 16),
        bench.entry(data=b"b" * 32, heads=[wide], priority=3, outputs=("y",), parameters={"p": 1}),
        bench.entry(data=b"c" * 16, traceparent="00-1-2-01", caller_id="mine"),
    ]
    entries[2].attempt = 2
    message, body = unpack(RequestMessage, pack_requests(entries[0].lane, entries, "g1", "_INBOX.r", 1000.0))
    assert (message.gateway, message.reply, message.model, message.version) == ("g1", "_INBOX.r", "tiny", "")
    assert [layout.tensors[0].shape for layout in message.layouts] == [(1, 4), (1, 8)]
    assert [head.layout for head in message.requests] == [0, 1, 0]
    assert [head.id for head in message.requests] == [e.id for e in entries]
    assert [(head.tenant, head.traceparent) for head in message.requests][1:] == [
        ("default", ""),
        ("default", "00-1-2-01"),
    ]
    assert [head.caller_id for head in message.requests] == [e.request.caller_id for e in entries]
    assert [head.request_id for head in message.requests] == [e.request.request_id for e in entries]
    assert message.requests[2].caller_id == "mine"
    assert [head.attempt for head in message.requests] == [0, 0, 2]
    assert (message.requests[1].priority, message.requests[1].outputs) == (3, ("y",))
    assert message.requests[1].parameters == {"p": 1}
    assert message.requests[0].admitted_unix_us == 1_001_000_000
    assert message.requests[0].deadline_unix_ms == int((entries[0].request.deadline_s + 1000) * 1000)
    assert bytes(body) == b"a" * 16 + b"b" * 32 + b"c" * 16


def test_lanes_without_requests_are_forgotten_when_there_are_too_many() -> None:
    bench = Bench()
    kept = bench.entry()
    for n in range(MAX_IDLE_LANES + 10):
        bench.coalescer.lane(Target("default", "default", card(f"m{n}"), ""), "norm")
    assert len(bench.coalescer._lanes) <= MAX_IDLE_LANES
    assert bench.coalescer.lane(TINY, "norm") is kept.lane
