"""One thread per test process: on rows this small more threads only wait for each other."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
