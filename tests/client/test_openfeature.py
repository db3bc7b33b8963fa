"""Our OpenFeature provider: it agrees with the stock one everywhere, and has the SDK's states, events, types and errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openfeature import api
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from openfeature.event import EventDetails, ProviderEvent
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import Reason
from openfeature.provider import ProviderStatus

from canary.client import FlagClient, disk
from canary.client.openfeature import CanaryProvider
from canary.domain.errors import UnreachableError
from canary.domain.flag import Flag, Snapshot
from canary.flow.ports import Store
from canary.inmemory import InMemoryStore
from tests.api.served import add_route, serving
from tests.client.agree import agree_everywhere, side_by_side, turn
from tests.client.test_client import Clock, eventually, foreign

NOBODY = "http://127.0.0.1:9"


class Leaving:
    """A store that goes away and comes back."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.away = False

    def transaction(self) -> Any:
        if self.away:
            raise UnreachableError("the database does not answer")
        return self._inner.transaction()

    def leave(self, away: bool) -> None:
        self.away = away


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    api.clear_providers()


def test_the_stock_provider_and_ours_agree_at_every_stage_killed_and_stale_included() -> None:
    """A3.21, A5.13: same value, variant, reason and metadata for every unit, and never an error."""
    inner = InMemoryStore()
    add_route(inner, "math")
    store = Leaving(inner)
    with serving(store) as url:
        compared = agree_everywhere(inner, url, store.leave, [f"user-{at}" for at in range(300)])
    stages = dict.fromkeys(("0 %", "5 %", "10 %", "100 %", "killed"), 320)
    assert compared == stages | {"pinned": 120, "unkilled": 120, "stale": 300}


def test_both_providers_fail_alike() -> None:
    store = InMemoryStore()
    add_route(store, "math")
    with serving(store) as url, FlagClient(url, start=False) as client, side_by_side(url, client, "errors") as sides:
        version = turn(store, "math", weight=500)
        eventually(lambda: client.refresh() and client.snapshot is not None and client.snapshot.version == version)
        unit = EvaluationContext(targeting_key="u")
        for one in (sides.stock, sides.ours):
            assert one.get_boolean_details("specdec.math", False).error_code is ErrorCode.TARGETING_KEY_MISSING
            assert one.get_boolean_details("specdec.other", False, unit).error_code is ErrorCode.FLAG_NOT_FOUND
            assert one.get_boolean_details("other", False, unit).error_code is ErrorCode.FLAG_NOT_FOUND
            assert one.get_string_details("specdec.math", "x", unit).error_code is ErrorCode.TYPE_MISMATCH
            assert one.get_float_details("specdec.math", 1.0, unit).error_code is ErrorCode.TYPE_MISMATCH
            assert one.get_object_details("specdec.math", {}, unit).error_code is ErrorCode.TYPE_MISMATCH
            assert one.get_boolean_details("specdec-config.math", False, unit).error_code is ErrorCode.TYPE_MISMATCH
            assert one.get_boolean_value("specdec.other", False, unit) is False
        assert sides.ours.get_integer_details("specdec.math", 1, unit).error_code is ErrorCode.TYPE_MISMATCH


def test_requests_that_a_policy_leaves_out_are_told_apart_by_the_context() -> None:
    with foreign() as server, FlagClient(server.url, start=False) as client:
        server.body = (
            b'{"version": 1, "flags": {"math": {"weight": 10000, "salt": "s", "match": {"strata": ["greedy"], "stream": "any"}}}}'
        )
        assert client.refresh()
        api.set_provider_and_wait(CanaryProvider(client), "match")
        ours = api.get_client("match")
        greedy, sampled = (EvaluationContext("u", {"temperature": t}) for t in (0, 0.7))
        assert ours.get_boolean_value("specdec.math", False, greedy) is True
        found = ours.get_boolean_details("specdec.math", True, sampled)
        assert (found.value, found.reason, found.flag_metadata["rule"]) == (False, Reason.TARGETING_MATCH, "match")


def test_states_and_events_follow_the_flags() -> None:
    events: list[tuple[str, list[str] | None]] = []
    clock = Clock()
    with foreign() as server, FlagClient(server.url, clock=clock, start=False, max_stale=60) as client:
        server.say(1, 10_000)
        assert client.refresh()
        api.set_provider_and_wait(CanaryProvider(client), "states")
        ours = api.get_client("states")

        def heard(details: EventDetails) -> None:
            events.append((details.message or "", details.flags_changed))

        for event in (ProviderEvent.PROVIDER_STALE, ProviderEvent.PROVIDER_CONFIGURATION_CHANGED):
            ours.add_handler(event, heard)
        assert ours.get_provider_status() is ProviderStatus.READY
        server.say(2, 0, killed=True)
        assert client.refresh()
        assert events == [("", ["specdec.math", "specdec-config.math"])]
        server.status = 503
        clock.now += 61
        assert not client.refresh()
        assert ours.get_provider_status() is ProviderStatus.STALE
        assert ours.get_boolean_details("specdec.math", True).reason is Reason.DISABLED, "a stale kill is a kill"
        server.say(2, 0, killed=True)
        assert client.refresh()
        assert ours.get_provider_status() is ProviderStatus.READY


def test_a_cold_start_without_network_is_the_baseline_and_no_error_a5_18() -> None:
    client = FlagClient(NOBODY, start=False)
    api.set_provider(CanaryProvider(client, ready_seconds=0.0), "cold")
    ours = api.get_client("cold")
    eventually(lambda: ours.get_provider_status() is ProviderStatus.ERROR)
    found = ours.get_boolean_details("specdec.math", True, EvaluationContext("u"))
    assert (found.value, found.variant, found.reason, found.error_code) == (False, "baseline", Reason.UNKNOWN, None)


def test_a_cold_start_from_a_stale_cache_is_stale(tmp_path: Path) -> None:
    cache = tmp_path / "flags.json"
    assert disk.write(cache, Snapshot(1, 0.0, {"math": Flag("math", 500, "s")}), "", time.time() - 3_600)
    client = FlagClient(NOBODY, start=False, cache=cache)
    api.set_provider_and_wait(CanaryProvider(client, ready_seconds=0.0), "old")
    ours = api.get_client("old")
    eventually(lambda: ours.get_provider_status() is ProviderStatus.STALE)
    assert ours.get_boolean_details("specdec.math", True, EvaluationContext("u")).reason is Reason.UNKNOWN


def test_flags_that_arrive_late_make_the_provider_ready() -> None:
    with foreign() as server:
        client = FlagClient(server.url, start=False)
        server.status = 503
        api.set_provider(CanaryProvider(client, ready_seconds=0.0), "late")
        ours = api.get_client("late")
        eventually(lambda: ours.get_provider_status() is ProviderStatus.ERROR)
        server.say(1, 10_000)
        assert client.refresh()
        assert ours.get_provider_status() is ProviderStatus.READY
        assert ours.get_boolean_value("specdec.math", False) is True


def test_the_async_methods_do_not_call_anybody() -> None:
    with foreign() as server, FlagClient(server.url, start=False) as client:
        server.say(1, 10_000)
        assert client.refresh()
        api.set_provider_and_wait(CanaryProvider(client), "async")
        asked = len(server.asked)
        found = asyncio.run(api.get_client("async").get_boolean_details_async("specdec.math", False))
        assert (found.value, found.reason) == (True, Reason.STATIC)
        assert len(server.asked) == asked


def test_the_stock_provider_pauses_when_it_is_told_to_a3_28() -> None:
    """A3.28: our Retry-After is one that the stock client understands; it serves the code's default meanwhile."""
    store = InMemoryStore()
    add_route(store, "math")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CANARY_OFREP_RATE", "0.001")
        patch.setenv("CANARY_OFREP_BURST", "1")
        from canary.wiring import settings

        settings.cache_clear()
        try:
            with serving(store) as url:
                provider = OFREPProvider(url, timeout=30.0)
                api.set_provider_and_wait(provider, "shed")
                stock = api.get_client("shed")
                assert stock.get_boolean_details("specdec.math", True).reason is Reason.STATIC
                assert stock.get_boolean_details("specdec.math", True).error_code is ErrorCode.GENERAL
                assert provider.retry_after is not None
        finally:
            settings.cache_clear()
