"""The writer thread: micro-batches, one transaction each, and no neighbour harmed."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from canary.domain.errors import UnreachableError
from canary.domain.traffic import Prompt
from canary.edge.writer import Writer
from canary.flow.mirrored import Recent
from canary.flow.ports import Store
from canary.flow.walk.mirror import Accepted, read_request
from canary.inmemory import InMemoryStore
from tests.api.served import add_route
from tests.edge.bad_bodies import chat


def prompt(at: int) -> Prompt:
    return read_request(chat(), route="math", endpoint="chat/completions", source="gw", request_id=f"id-{at}")


class Counting:
    """Counts transactions and can refuse batches that hold one request."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.transactions = 0
        self.gate = threading.Event()

    def transaction(self):  # type: ignore[no-untyped-def]
        self.gate.wait(30)
        self.transactions += 1
        return self.inner.transaction()


@pytest.fixture
def store() -> Counting:
    inner = InMemoryStore()
    add_route(inner, "math")
    return Counting(inner)


def test_what_waits_is_written_together(store: Counting) -> None:
    writer = Writer(store, batch_size=50)
    writer.start()
    futures = [writer.submit(prompt(at)) for at in range(120)]
    store.gate.set()
    writer.close()
    assert [f.result(0) for f in futures] == [Accepted.ACCEPTED] * 120
    # The first batch may have closed while it was still being filled.
    assert 3 <= store.transactions <= 4


def test_one_bad_prompt_does_not_take_its_neighbours(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    from canary.edge import writer as module

    real = module.accept

    def refuse(held: Store, prompts: list[Prompt], now: float, recent: Recent) -> list[Accepted]:
        if any(p.request_id == "id-3" for p in prompts):
            raise RuntimeError("this row cannot be stored")
        return real(held, prompts, now, recent)

    monkeypatch.setattr(module, "accept", refuse)
    store.gate.set()
    writer = Writer(store)
    writer.start()
    futures = [writer.submit(prompt(at)) for at in range(6)]
    writer.close()
    assert [f.exception(0) is None for f in futures] == [True, True, True, False, True, True]
    with store.transaction() as tx:
        assert tx.prompts.count("math") == 5


def test_an_unreachable_store_fails_the_batch_and_the_writer_lives(store: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    from canary.edge import writer as module

    real, down = module.accept, threading.Event()
    down.set()

    def sometimes(held: Store, prompts: list[Prompt], now: float, recent: Recent) -> list[Accepted]:
        if down.is_set():
            raise UnreachableError("the database does not answer")
        return real(held, prompts, now, recent)

    monkeypatch.setattr(module, "accept", sometimes)
    store.gate.set()
    writer = Writer(store)
    writer.start()
    lost = [writer.submit(prompt(at)) for at in range(3)]
    wait(lost, 30)
    assert all(isinstance(f.exception(0), UnreachableError) for f in lost)
    down.clear()
    assert writer.submit(prompt(0)).result(30) is Accepted.ACCEPTED
    writer.close()


def test_a_cancelled_future_does_not_stop_the_batch(store: Counting) -> None:
    writer = Writer(store)
    writer.start()
    first, second = writer.submit(prompt(1)), writer.submit(prompt(2))
    first.cancel()
    store.gate.set()
    assert second.result(30) is Accepted.ACCEPTED
    writer.close()


def test_it_can_be_started_again_and_refuses_before(store: Counting) -> None:
    store.gate.set()
    writer = Writer(store)
    with pytest.raises(UnreachableError):
        writer.submit(prompt(1))
    writer.start()
    writer.start()
    writer.close()
    writer.close()
    writer.start()
    assert writer.submit(prompt(1)).result(30) is Accepted.ACCEPTED
    writer.close()
