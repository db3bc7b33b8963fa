"""Record `history.npz`: sixty pairs' increments with their calibration, and the evidence that folding them gives.

To be run when the battery's layout changes, and only then: with the layout the same, other numbers are a mistake.
"""

from __future__ import annotations

import torch

from tests.stats.golden.recorded import PATH, write
from tests.stats.histories import record

torch.set_num_threads(1)
history = record(60, seed=2024, fault="resample_from_target")
write(history.context, history.items)
print(f"{PATH.name}: {PATH.stat().st_size} bytes, {len(history.items)} ordinals")
