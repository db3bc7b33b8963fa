"""The snapshot cache: it keeps the last snapshot through an outage, lets its age grow, and says so once."""

from __future__ import annotations

import hashlib

from canary.api.flags import FlagCache
from canary.inmemory import InMemoryStore
from tests.api.served import NOW, Away, Clock, Notes, add_route, set_weight


def test_the_last_snapshot_stays_and_ages_through_an_outage() -> None:
    inner, notes, clock = InMemoryStore(), Notes(), Clock()
    add_route(inner, "math")
    store = Away(inner)
    cache = FlagCache(store, notes, clock=lambda: NOW, monotonic=clock)
    assert (cache.published, cache.age_seconds) == (None, None)
    cache.refresh()
    first = cache.published
    assert first is not None
    assert first.etag == f'"{hashlib.sha256(first.body).hexdigest()[:32]}"'
    store.away = True
    set_weight(inner, "math", 500)
    clock.now += 7
    cache.refresh()
    cache.refresh()
    assert (cache.published, cache.age_seconds) == (first, 7.0)
    assert notes.seen == [("flags_not_refreshed", {"error": "UnreachableError"})]
    store.away = False
    cache.refresh()
    second = cache.published
    assert second is not None
    assert (second.snapshot.flags["math"].weight, cache.age_seconds) == (500, 0.0)
    assert second.etag != first.etag
    store.away = True
    cache.refresh()
    assert len(notes.seen) == 2, "the next outage is said again"


def test_it_can_be_started_and_closed_twice() -> None:
    cache = FlagCache(InMemoryStore(), Notes(), refresh_seconds=0.01)
    for _ in range(2):
        cache.start()
        cache.start()
        assert cache.wait_first(30)
        cache.close()
        cache.close()
    assert cache.published is not None
