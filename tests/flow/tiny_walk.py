"""A whole route on a tiny random model in fp32: policy, prompts and engine, small enough for a test."""

from __future__ import annotations

import json
import random
from pathlib import Path

from canary.domain.policy import Policy
from canary.domain.traffic import Prompt
from canary.flow.tools.policy_files import load_text
from canary.flow.walk.mirror import read_request
from tests.engine.tiny import save_tiny, tiny_model

ROUTE = "tiny"
# k is fixed: how much an adaptive one drafts hangs on how long steps take here and now.
TEXT = """
route: {route}
subject:
  engine: own
  target: {target}
  dtype: float32
  drafter: {{name: ngram, num_speculative_tokens: 3, adaptive: false}}{fault}
shadow: {{batch_size: 4, max_tokens: {max_tokens}, calibration_requests: 4, lease: {lease}, control_rate: {control_rate}}}
gates:
  margin: 0.02
  request_margin: 0.05
  row_margin: 0.02
  gap_rate: 0.005
  outlier_rate: 0.005
  noise_floor_positions: 100
  acceptance_floor: 0.01
  speed_ratio: 1.1
stages:
  - {{name: shadow, weight: 0 %}}
  - {{name: canary, weight: 5 %, live: waived, why: a test}}
  - {{name: full, weight: 100 %}}
"""


def model_dir(folder: Path) -> Path:
    """A tiny Llama in fp32, as an ordinary model directory."""
    return save_tiny(folder / "tiny", tiny_model(eos=False))


def policy_text(
    target: Path,
    *,
    route: str = ROUTE,
    fault: str | None = None,
    max_tokens: int = 12,
    lease: str = "60s",
    control_rate: float = 0.0,
) -> str:
    """The route's policy in YAML."""
    injected = f"\n  fault: {fault}" if fault else ""
    return TEXT.format(route=route, target=target, fault=injected, max_tokens=max_tokens, lease=lease, control_rate=control_rate)


def policy(target: Path, **changes: str | float | None) -> Policy:
    """The route's policy."""
    return load_text(policy_text(target, **changes))  # type: ignore[arg-type]


def body(number: int, temperature: float) -> bytes:
    """One chat body, repetitive enough for n-grams."""
    draw = random.Random(number)
    text = "".join(draw.choice("abc ") for _ in range(draw.randint(8, 30)))
    request = {"messages": [{"role": "user", "content": text}], "temperature": temperature, "max_tokens": 12}
    return json.dumps(request).encode()


def prompts(count: int, temperature: float, *, route: str = ROUTE) -> list[Prompt]:
    """Mirrored requests of the route."""
    return [
        read_request(body(i, temperature), route=route, endpoint="chat/completions", source="test", request_id=f"r{i}")
        for i in range(count)
    ]
