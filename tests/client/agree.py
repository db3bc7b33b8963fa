"""The stock OpenFeature provider over HTTP and our own in process, side by side through the SDK, on the same units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from openfeature import api
from openfeature.client import OpenFeatureClient
from openfeature.contrib.provider.ofrep import OFREPProvider
from openfeature.evaluation_context import EvaluationContext
from openfeature.flag_evaluation import Reason

from canary.client import FlagClient
from canary.client.openfeature import CanaryProvider
from canary.flow.ports import Store
from tests.client.test_client import eventually

OFF: dict[str, Any] = {"code_default": True}
UNIT = EvaluationContext(targeting_key="anybody")


@dataclass(frozen=True)
class Sides:
    """Both clients, and the flag client behind ours."""

    stock: OpenFeatureClient
    ours: OpenFeatureClient
    client: FlagClient

    def compare(self, key: str, units: Sequence[str | None], *, fresh: bool = True) -> tuple[set[str | None], int]:
        """The units that get the candidate, and how many were compared; every detail must agree and none be an error."""
        chosen = set()
        for at, unit in enumerate(units):
            if fresh and at % 200 == 0:
                self.client.refresh()
            context = EvaluationContext(targeting_key=unit)
            if key.startswith("specdec-config."):
                one, other = (c.get_object_details(key, OFF, context) for c in (self.stock, self.ours))
            else:
                one, other = (c.get_boolean_details(key, False, context) for c in (self.stock, self.ours))  # type: ignore[assignment]
            seen = [(d.value, d.variant, d.reason, d.error_code) for d in (one, other)]
            metadata = [{k: v for k, v in d.flag_metadata.items() if k != "age_seconds"} for d in (one, other)]
            assert seen[0] == seen[1], (key, unit, seen)
            assert metadata[0] == metadata[1], (key, unit, metadata)
            assert one.error_code is None, (key, unit, one)
            assert one.reason is not Reason.ERROR
            if one.variant == "candidate":
                chosen.add(unit)
        return chosen, len(units)


@contextmanager
def side_by_side(url: str, client: FlagClient, name: str) -> Iterator[Sides]:
    """Both providers registered with the SDK, under domains of their own."""
    stock, ours = f"stock-{name}", f"ours-{name}"
    api.set_provider_and_wait(OFREPProvider(url, timeout=30.0), stock)
    assert client.refresh()
    api.set_provider_and_wait(CanaryProvider(client), ours)
    try:
        yield Sides(api.get_client(stock), api.get_client(ours), client)
    finally:
        api.clear_providers()


def agree_everywhere(store: Store, url: str, away: Callable[[bool], None], units: Sequence[str]) -> dict[str, int]:
    """Compare at every stage, killed, and stale; returns how many evaluations agreed at each.

    Args:
        away: makes the server's store unreachable, or reachable again.
    """
    compared: dict[str, int] = {}
    with FlagClient(url, start=False) as client, side_by_side(url, client, "agree") as sides:
        stages: dict[str, set[str | None]] = {}

        def at(name: str, units: Sequence[str] = units, **changes: Any) -> set[str | None]:
            version = turn(store, "math", **changes)
            eventually(lambda: client.refresh() and client.snapshot is not None and client.snapshot.version == version)
            stages[name], compared[name] = sides.compare("specdec.math", units)
            config, extra = sides.compare("specdec-config.math", units[:20])
            assert config == stages[name] & set(units[:20])
            compared[name] += extra
            return stages[name]

        at("0 %", weight=0, config={"drafter": "ngram", "num_speculative_tokens": 4})
        five, ten = at("5 %", weight=500, stage="canary-5"), at("10 %", weight=1_000, stage="canary-10")
        assert five < ten, "A3.21: raising the weight keeps the first share"
        assert at("100 %", weight=10_000, stage="full") == set(units)
        sides.compare("specdec.math", [None])
        few = units[:100]
        shy = at("pinned", few, pins={few[0]: "baseline"})
        assert set(few) - shy == {few[0]}
        assert at("killed", killed=True, kill_reason="manual: no", kill_id="k1", kill_epoch=1, killed_at=5.0) == set()
        at("unkilled", few, killed=False, kill_epoch=2, weight=1_000, pins={})
        version = turn(store, "math", max_stale=0.5)
        eventually(lambda: client.refresh() and client.snapshot is not None and client.snapshot.version == version)
        away(True)
        eventually(lambda: sides.ours.get_boolean_details("specdec.math", True, UNIT).reason is Reason.UNKNOWN)
        eventually(lambda: sides.stock.get_boolean_details("specdec.math", True, UNIT).reason is Reason.UNKNOWN)
        stages["stale"], compared["stale"] = sides.compare("specdec.math", units, fresh=False)
        assert stages["stale"] == set()
        away(False)
    return compared


def turn(store: Store, route: str, **changes: Any) -> int:
    """Change the route's flag; returns the snapshot's version."""
    with store.transaction() as tx:
        flag = tx.flags.get(route)
        assert flag is not None
        tx.flags.put(replace(flag, **changes))
        tx.commit()
    with store.transaction() as tx:
        return tx.flags.snapshot(0.0).version
