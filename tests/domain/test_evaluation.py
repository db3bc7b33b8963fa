"""What a key comes to: every row of the OpenFeature table, and nothing without a value but an unknown key and a missing unit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from canary.domain.evaluation import evaluate, route_of
from canary.domain.flag import Flag, Snapshot
from canary.domain.match import Match

CONFIG = {"drafter": "ngram", "num_speculative_tokens": 4}
FLAG = Flag("math", 500, "specdec.math", stage="canary-5", policy_version="p1", config=CONFIG, pins={"vip": "candidate"})


def of(flag: Flag, key: str = "specdec.math", unit: str | None = "user-2", age: float = 0.0):  # type: ignore[no-untyped-def]
    return evaluate(Snapshot(7, 0.0, {"math": flag}), key, unit, age=age)


@pytest.mark.parametrize(
    ("flag", "unit", "age", "value", "reason", "said"),
    [
        (replace(FLAG, weight=0, stage="shadow"), None, 0.0, False, "STATIC", {"stage": "shadow", "policy_version": "p1"}),
        (FLAG, "user-2", 0.0, False, "SPLIT", {"stage": "canary-5", "weight_bp": 500, "salt": "specdec.math"}),
        (replace(FLAG, weight=1000), "user-2", 0.0, True, "SPLIT", {"weight_bp": 1000}),
        (FLAG, "vip", 0.0, True, "TARGETING_MATCH", {"rule": "pin"}),
        (replace(FLAG, match=Match(stream="only")), "vip", 0.0, False, "TARGETING_MATCH", {"rule": "match"}),
        (replace(FLAG, weight=10_000, stage="full"), None, 0.0, True, "STATIC", {"stage": "full", "snapshot_version": 7}),
        (
            FLAG.switched(True, reason="manual: no", kill_id="k1", at=9.0),
            None,
            0.0,
            False,
            "DISABLED",
            {"kill_reason": "manual: no", "kill_id": "k1", "killed_at": 9.0, "kill_epoch": 1},
        ),
        (FLAG, "user-2", 61.5, False, "UNKNOWN", {"stale": True, "age_seconds": 61}),
    ],
)
def test_every_state_has_value_variant_reason_and_metadata(
    flag: Flag, unit: str | None, age: float, value: bool, reason: str, said: dict[str, object]
) -> None:
    found = of(flag, unit=unit, age=age)
    assert (found.value, found.variant, found.reason, found.error) == (
        value,
        "candidate" if value else "baseline",
        reason,
        "",
    )
    assert said.items() <= found.metadata.items()
    assert all(isinstance(v, str | int | float | bool) for v in found.metadata.values()), "scalars only"
    config = of(flag, "specdec-config.math", unit, age)
    assert config.value == (CONFIG if value else {"num_speculative_tokens": 0})
    assert (config.variant, config.reason, config.metadata) == (found.variant, found.reason, found.metadata)


def test_errors_have_a_code_and_a_sentence() -> None:
    for key, unit, code in (
        ("specdec.math", None, "TARGETING_KEY_MISSING"),
        ("specdec.math", "", "TARGETING_KEY_MISSING"),
        ("specdec.other", "u", "FLAG_NOT_FOUND"),
        ("other", "u", "FLAG_NOT_FOUND"),
        ("", "u", "FLAG_NOT_FOUND"),
    ):
        found = of(FLAG, key, unit)
        assert (found.error, found.value, found.variant) == (code, False, "baseline")
        assert found.details
    assert evaluate(None, "specdec.math", "u").reason == "UNKNOWN"
    assert evaluate(None, "specdec.math", "u").metadata == {"stale": True}


def test_a_key_names_its_route() -> None:
    assert [route_of(k) for k in ("specdec.a.b", "specdec-config.a", "specdec", "x.specdec.a")] == ["a.b", "a", None, None]
