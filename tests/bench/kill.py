"""How fast a kill reaches clients with Postgres stopped and then killed, and no scheduler: `python -m tests.bench.kill`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.prove.kill_figures import BOUNDS, run

CLIENTS, KILLS = 200, 50  # A3.19


def main() -> int:
    """Measure and print; 1 if a client was late or a 99th percentile is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=CLIENTS, help="over both replicas, half of them by stream; 4, 8, ...")
    parser.add_argument("--kills", type=int, default=KILLS, help="one route each, sent to one replica")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="canary-kill-") as folder:
        # As root the embedded server runs as another user, who must reach its folder.
        Path(folder).chmod(0o755)
        found = run(Path(folder), clients=given.clients, kills=given.kills, first=(0, 1), then=(0, 1))
    printed = {
        name: {word: value for word, value in found[name].to_dict().items() if word.endswith("_seconds") or word == "connected"}
        for name in BOUNDS
    }
    print(json.dumps({**printed, "late": found["late"].acknowledged, "of": given.clients * given.kills}, indent=1))
    slow = [name for name, bound in BOUNDS.items() if (found[name].quantile(0.99) or bound) >= bound]
    return int(bool(slow) or found["late"].acknowledged > 0)


if __name__ == "__main__":
    sys.exit(main())
