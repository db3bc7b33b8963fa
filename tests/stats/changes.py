"""Simulated attempts that go wrong after a clean history: how many requests the change detector needs (statistics 3.9)."""

from __future__ import annotations

from dataclasses import replace

from canary.domain.pairs import DrafterKind
from canary.domain.policy import Gates
from canary.stats.bank import Bank
from canary.stats.battery import Battery
from canary.stats.calibration import calibrate
from canary.stats.components import Components
from canary.stats.pit import Pit
from canary.stats.xreq import Xreq
from tests.bench.worlds import FaultyEngine, make
from tests.bench.worlds_faults import FAULTS
from tests.stats.experiments import stored
from tests.stats.world import CALIBRATING, Engine, context_of, pair_of

LIMIT = 1e4  # mean requests between false alarms, as in the published table
GATES = Gates(watch_requests_per_day=LIMIT / 3650)


def delays(fault: str, runs: int, clean: int, most: int, seed: int) -> list[int | None]:
    """Requests from the change to the alarm in world A; 0 for an alarm before it, None for none within `most`.

    Args:
        fault: name in `worlds_faults.FAULTS`, from request `clean` on.
        clean: requests before it, the calibrating ones included.
    """
    world, kind, found = make("A"), DrafterKind.DENSE, []
    plain_engine = Engine(world, DrafterKind.ONE_HOT, k=0)
    for run in range(runs):
        at = seed + 4 * run
        before = FaultyEngine(world, kind).run(clean, at, want_tv=True)
        after = FaultyEngine(world, kind, inject=FAULTS[fault].inject).run(most, at + 1)
        plain = plain_engine.run(CALIBRATING, at + 2)
        first = [pair_of(before, i, i, tuple(plain.tokens[i].tolist())) for i in range(CALIBRATING)]
        context = context_of(kind, GATES)
        record = calibrate(first, context)
        pairs = first + [pair_of(before, i, i, (0,), record.hash) for i in range(CALIBRATING, clean)]
        pairs += [pair_of(after, i, clean + i, (0,), record.hash) for i in range(most)]
        batteries = {
            h: Battery(replace(context, calibration=c), (Bank(), Pit(), Xreq(), Components()))
            for h, c in ((record.hash, record), ("", None))
        }
        battery = batteries[record.hash]
        items = [*stored(batteries[""], pairs[:CALIBRATING]), *stored(battery, pairs[CALIBRATING:])]
        alarm = battery.fold(battery.start(), items).watch
        ordinal = alarm.alarm.ordinal if alarm.alarm else None
        found.append(None if ordinal is None else max(0, ordinal + 1 - clean))
    return found
