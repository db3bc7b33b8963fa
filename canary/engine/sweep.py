"""The engine's side of a sweep and of preflight: baseline answers run alone, step times measured now, and the memory's speed.

It measures and never recommends; nothing that it runs is traced or stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import torch

import canary
from canary.domain.policy import Drafter, Policy, Subject
from canary.domain.traffic import Prompt
from canary.engine import checkpoints
from canary.engine.decode import Decoder
from canary.engine.dtypes import resolve_dtype
from canary.engine.forward import RowForward
from canary.engine.memory import weight_bytes
from canary.engine.probe import verify_costs
from canary.engine.render import encode
from canary.engine.requests import Job
from canary.engine.streams import key_from_bytes
from canary.engine.sweep_tracks import Target, along
from canary.engine.transfer import find_device
from canary.flow.tools.sweep_facts import Baseline, Drafted, Recorded
from canary.stats.cost import Curve

WIDTHS = (1, 2, 3, 5, 9, 17)
REPEATS = 7
READ_BYTES = 256 * 2**20  # beyond any cache
READ_REPEATS = 5


class Bench:
    """A target with its rows, ready to be measured; see `flow.tools.sweep_facts.SweepEngine`."""

    def __init__(self, subject: Subject, target: Target, max_tokens: int, cache_dir: Path) -> None:
        self._subject, self._target, self._max_tokens, self._cache_dir = subject, target, max_tokens, cache_dir
        self._decoder = Decoder(
            target.rows, target.tokenizer, checkpoints.eos_ids(target.model, target.tokenizer), clock=perf_counter
        )
        self.described: Mapping[str, str] = {
            "engine": f"canary {canary.__version__}",
            "torch": torch.__version__,
            "target": subject.target,
            "weights": checkpoints.weights_digest(target.path),
            "tokenizer": checkpoints.tokenizer_digest(target.path),
            "dtype": str(target.model.dtype).removeprefix("torch."),
            "forward": target.rows.forward,
            "threads": str(torch.get_num_threads()),
        }
        stable = json.dumps({k: v for k, v in self.described.items() if k != "threads"}, sort_keys=True)
        self.fingerprint = hashlib.blake2b(stable.encode(), digest_size=16).hexdigest()

    @classmethod
    def open(cls, policy: Policy, cache_dir: Path, *, num_rows: int = 1, threads: int | None = None) -> Bench:
        """Load a policy's target.

        Args:
            cache_dir: where converted models are kept.
            num_rows: most requests together.
            threads: torch threads, None leaves them as they are.

        Raises:
            ModelError: the target cannot be used.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        path = checkpoints.prepare(policy.subject.target, cache_dir)
        device = find_device(policy.subject.device, "subject.device")
        subject = replace(policy.subject, dtype=resolve_dtype(policy.subject.dtype, path, cache_dir, device))
        model, tokenizer = checkpoints.load(path, subject.dtype, device)
        target = Target(path, model, tokenizer, RowForward(model, num_rows))
        return cls(subject, target, policy.shadow.max_tokens, cache_dir)

    def record(self, prompt: Prompt) -> Recorded | None:
        params = prompt.params.clamped(self._max_tokens)
        start = perf_counter()
        try:
            ids = encode(self._target.tokenizer, prompt)
        except Exception:  # a chat template is a program of the model's and may raise anything
            return None
        key = hashlib.blake2b(prompt.request_id.encode(), digest_size=16).digest()
        (done,) = self._decoder.run([Job(0, ids, params, key_from_bytes(key), form=prompt.form)])
        end = perf_counter()
        if done.error is not None or done.first_at is None:
            return None
        return Recorded(prompt.request_id, params, ids, tuple(done.token_ids), done.first_at - start, end - done.first_at)

    def curve(self, batches: Sequence[int], context: int) -> Curve:
        room = self._target.rows.context - max(WIDTHS)
        costs = verify_costs(
            self._target.rows, widths=WIDTHS, batches=tuple(batches), context=max(1, min(context, room)), repeats=REPEATS
        )
        return Curve({(context, c.batch, c.width): c.milliseconds / 1e3 for c in costs})

    def baseline(self, step_seconds: float) -> Baseline:
        return Baseline(step_seconds, float(weight_bytes(self._target.model)), read_bandwidth(self._target.rows.device))

    def along(self, drafter: Drafter, answers: Sequence[Recorded], batches: Sequence[int], most: int) -> Drafted:
        return along(drafter, self._target, answers, batches, most, self._subject, self._cache_dir)


def read_bandwidth(device: torch.device, num_bytes: int = READ_BYTES) -> float:
    """Bytes a second that all threads of the device read from memory together: the best of a few sums over a large buffer."""
    buffer = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    seconds = []
    for _ in range(READ_REPEATS + 1):
        start = perf_counter()
        float(buffer.sum())
        seconds.append(perf_counter() - start)
    return num_bytes / min(seconds[1:])
