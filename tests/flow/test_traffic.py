"""Counting what the mirror sees and what an attempt loses, and the tables made of it."""

from __future__ import annotations

import math

import pytest

from canary.domain import budget
from canary.domain.errors import UnreachableError
from canary.domain.mirrored import LENGTH_EDGES, MirrorCount
from canary.domain.traffic import Prompt, Stratum
from canary.flow.mirrored import Recent
from canary.flow.ports import FoldItem
from canary.flow.tools.bodies import CHAT, COMPLETIONS, read_request
from canary.flow.traffic import count, traffic
from canary.flow.walk.mirror import Accepted, accept, kept
from canary.inmemory import InMemoryStore
from canary.stats.shares import Kept, Losses, Split
from tests.api.served import NOW, add_route
from tests.edge.bad_bodies import chat, completion

RATE = 0.1


def prompts(count: int, *, endpoint: str = CHAT, first: int = 0, route: str = "math", **fields: object) -> list[Prompt]:
    body = chat(**fields) if endpoint == CHAT else completion(**fields)
    return [
        read_request(body, route=route, endpoint=endpoint, source="gw", request_id=f"id-{at}")
        for at in range(first, first + count)
    ]


def made(rate: float = RATE) -> InMemoryStore:
    store = InMemoryStore()
    add_route(store, "math", mirror_rate=rate)
    return store


def counted(store: InMemoryStore, rate: float = RATE, route: str = "math") -> list[MirrorCount]:
    with store.transaction() as tx:
        return tx.mirrored.get(route, rate)


def totals(store: InMemoryStore, rate: float = RATE) -> tuple[int, int]:
    found = counted(store, rate)
    return sum(c.seen for c in found), sum(c.kept for c in found)


@pytest.mark.parametrize(("given", "stream"), [({}, False), ({"stream": None}, False), ({"stream": True}, True)])
def test_the_stream_flag_is_read_from_the_body(given: dict[str, object], stream: bool) -> None:
    found = read_request(chat(**given), route="math", endpoint=CHAT, source="gw", request_id="id")
    assert found.stream is stream


def test_what_is_seen_and_kept_is_counted_by_kind() -> None:
    store = made()
    batch = [*prompts(300), *prompts(200, endpoint=COMPLETIONS, first=300, stream=True)]
    states = accept(store, batch, NOW)
    for endpoint, stream, part in ((CHAT, False, slice(0, 300)), (COMPLETIONS, True, slice(300, 500))):
        (found,) = [c for c in counted(store) if c.endpoint == endpoint]
        assert (found.stream, found.length, found.seen) == (stream, 0, len(batch[part]))
        assert found.kept == states[part].count(Accepted.ACCEPTED) > 0
    _, stored = totals(store)
    with store.transaction() as tx:
        assert tx.prompts.count("math") == stored


def test_a_repeat_counts_once_kept_or_not() -> None:
    store, recent, batch = made(), Recent(), prompts(200)
    states = accept(store, [*batch, *batch[:50]], NOW, recent)
    once = totals(store)
    assert once == (200, states[:200].count(Accepted.ACCEPTED))
    assert accept(store, batch, NOW + 1, recent)[:200].count(Accepted.SAMPLED_OUT) == 200 - once[1]
    assert totals(store) == once
    accept(store, batch, NOW + 2)  # a writer that knows nothing of the first one
    assert totals(store) == (once[0] + 200 - once[1], once[1]), "a late repeat counts as seen, and never as kept"


def test_what_was_not_committed_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    store, recent, batch = made(), Recent(), prompts(50)

    def down(self: object, counts: object) -> None:
        raise UnreachableError("the database does not answer")

    with monkeypatch.context() as broken:
        broken.setattr("canary.inmemory.traffic.Mirrored.add", down)
        with pytest.raises(UnreachableError):
            accept(store, batch, NOW, recent)
    assert totals(store) == (0, 0)
    accept(store, batch, NOW, recent)
    assert totals(store)[0] == 50


def test_the_memory_of_ids_is_bounded_and_forgets_the_oldest() -> None:
    recent = Recent(capacity=3)
    recent.add(bytes([n]) for n in range(5))
    assert [bytes([n]) in recent for n in range(5)] == [False, False, True, True, True]


def test_unknown_routes_are_not_counted_and_a_new_rate_is_a_new_window() -> None:
    store = made()
    accept(store, [*prompts(40), *prompts(5, route="elsewhere")], NOW)
    assert totals(store)[0] == 40
    assert counted(store, route="elsewhere") == []
    add_route(store, "other", mirror_rate=0.5)
    accept(store, prompts(60, route="other"), NOW)
    assert totals(store)[0] == 40
    assert totals(store, rate=1.0) == (0, 0)


def item(ordinal: int, lost: bool, stratum: Stratum | None = Stratum.SAMPLED, length: int = 0, control: bool = False) -> FoldItem:
    return FoldItem(ordinal, None if lost else b"", "", 0.0, control, stratum, None if stratum is None else length)


def test_outcomes_are_counted_as_they_are_folded() -> None:
    first = count({}, [item(0, False), item(1, True), item(2, True, control=True), item(3, True, stratum=None)])
    assert first == {"stratum": {"sampled": [2, 1]}, "length": {"0": [2, 1]}}
    second = count(first, [item(4, True, Stratum.GREEDY, 1024)])
    assert second == {"stratum": {"sampled": [2, 1], "greedy": [1, 1]}, "length": {"0": [2, 1], "1024": [1, 1]}}
    assert first == {"stratum": {"sampled": [2, 1]}, "length": {"0": [2, 1]}}, "the given ones stay as they were"


def window(*kinds: tuple[bool, int, int, int]) -> list[MirrorCount]:
    return [MirrorCount("math", RATE, CHAT, stream, length, seen, kept) for stream, length, seen, kept in kinds]


def test_the_tables_of_a_counted_mirror() -> None:
    counts = window((False, 0, 900, 90), (True, 1024, 100, 8))
    found = traffic(counts, RATE, count({}, [item(0, False)]))
    assert found.untested == ()
    assert [type(t) for t in found.tables] == [Split, Kept, Kept, Kept, Losses, Losses]
    assert len(found.tables) + 2 == budget.RATIO_SPLITS
    whole, length, stream, endpoint = found.tables[:4]
    assert isinstance(whole, Split)
    assert whole.counts == {"kept": 98, "left out": 902}
    assert whole.planned == {"kept": RATE, "left out": 1 - RATE}
    for table, groups in ((length, len(LENGTH_EDGES)), (stream, 2), (endpoint, 2)):
        assert isinstance(table, Kept)
        assert len(table.seen) == groups, "every group that there can be, so that the mean over them is a martingale"
        assert (sum(table.seen.values()), sum(table.kept.values()), table.rate) == (1000, 98, RATE)
    assert isinstance(stream, Kept)
    assert (stream.seen, stream.kept) == ({"streamed": 100, "whole": 900}, {"streamed": 8, "whole": 90})


@pytest.mark.parametrize(
    ("rate", "words"),
    [(1.0, "mirrors every request"), (0.0, "mirrors no request"), (RATE, "no request was counted at mirror rate 0.1")],
)
def test_what_cannot_be_tested_is_said(rate: float, words: str) -> None:
    found = traffic([], rate, {})
    assert found.tables == ()
    assert len(found.untested) == 2
    assert words in found.untested[0]
    assert "none of them has finished yet" in found.untested[1]
    assert len(traffic([], rate, count({}, [item(0, True)])).untested) == 1


def test_losses_that_spare_no_group_are_quiet_and_those_of_long_prompts_are_not() -> None:
    goal = math.log(1 / budget.RATIO_ALPHA)
    even = [item(n, n % 10 in (0, 5), length=(0, 1024)[n % 2]) for n in range(400)]
    late = [item(n, n % 20 == 1, length=(0, 1024)[n % 2]) for n in range(400)]
    for items, loud in ((even, False), (late, True)):
        by_length = traffic([], 1.0, count({}, items)).tables[1]
        assert isinstance(by_length, Losses)
        assert bool(by_length.log_e >= goal) is loud
        assert set(by_length.claimed) == {"0-255 characters", "1024-4095 characters"}


def test_a_real_hash_mirrors_as_planned() -> None:
    """Five routes of 2,000 requests through the mirror's own hash: no table is anywhere near its alarm."""
    for number in range(5):
        batch = [p for at in range(4) for p in prompts(500, first=500 * at, route=f"route-{number}", stream=at % 2 == 1)]
        counts = [MirrorCount.of(p, RATE, kept=kept(p, RATE)) for p in batch]
        for table in traffic(counts, RATE, {}).tables:
            assert table.log_e < math.log(1 / budget.RATIO_ALPHA)
