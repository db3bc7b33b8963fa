"""Single target steps for `tests.bench.engine`: against transformers', by width, and what of a step is not the forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch
from transformers import PreTrainedModel

from canary.domain.traffic import SamplingParams
from canary.engine.decode import Decoder
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.memory import weight_bytes
from canary.engine.requests import Job
from canary.engine.sweep import read_bandwidth

CONTEXT = 256
WIDTHS = (1, 2, 3, 5, 9)


def _seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def own_step(rows: RowForward, batch: int, width: int) -> Callable[[], object]:
    """One step of the first rows over `CONTEXT` cached tokens."""
    tokens = torch.zeros(batch, width, dtype=torch.int64)

    def run() -> object:
        rows.lengths[:batch] = [CONTEXT] * batch
        return rows.step(tokens)[:, :, 0].tolist()

    return run


def their_step(model: PreTrainedModel, rows: RowForward, batch: int) -> Callable[[], object]:
    """One step of transformers' own forward and cache; the cache grows by a token each time, which is little beside `CONTEXT`."""
    asked: dict[str, Any] = {"use_cache": True, "logits_to_keep": 1}
    kept = model(torch.zeros(batch, CONTEXT, dtype=torch.int64), **asked).past_key_values
    tokens = torch.zeros(batch, 1, dtype=torch.int64)
    return lambda: model(tokens, **asked, **{rows._cache_name: kept}).logits[:, :, 0].tolist()


@torch.inference_mode()
def against_transformers(model: PreTrainedModel, rows: RowForward, batch: int, rounds: int) -> list[float]:
    """Time of a step over that of transformers' step, round by round."""
    ours, theirs = own_step(rows, batch, 1), their_step(model, rows, batch)
    ours(), theirs()
    return [_seconds(ours) / _seconds(theirs) for _ in range(rounds)]


@torch.inference_mode()
def weights_alone(model: PreTrainedModel, rows: RowForward, batch: int, rounds: int) -> list[float]:
    """Time to read the weights once from memory over that of transformers' step, which no other step's share can go below."""
    theirs, size = their_step(model, rows, batch), weight_bytes(model)
    theirs()
    return [size / read_bandwidth(rows.device) / _seconds(theirs) for _ in range(rounds)]


@torch.inference_mode()
def curve(rows: RowForward, batch: int, rounds: int) -> dict[int, list[float]]:
    """Time of a step of each width over that of width 1, round by round."""
    steps = {width: own_step(rows, batch, width) for width in WIDTHS}
    ratios: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for turn in range(rounds + 1):
        seconds = {width: _seconds(step) for width, step in steps.items()}
        if turn:
            for width in WIDTHS:
                ratios[width].append(seconds[width] / seconds[1])
    return ratios


def outside(rows: RowForward, words: Any, prompts: Sequence[Sequence[int]], k: int, new: int, rounds: int) -> list[float]:
    """Share of the decoding time that is not spent in the target's forward, run by run; prefills count on neither side."""
    loop = Decoder(rows, words, frozenset(), NgramDrafter(rows.num_rows, 3) if k else None, k)
    inside = {"step": 0.0, "prefill": 0.0, "prefill_all": 0.0}
    true = {name: getattr(rows, name) for name in inside}

    def timed(name: str) -> Callable[..., torch.Tensor]:
        def run(*args: Any) -> torch.Tensor:
            start = perf_counter()
            out: torch.Tensor = true[name](*args)
            inside[name] += perf_counter() - start
            return out

        return run

    shares = []
    try:
        for name in inside:
            setattr(rows, name, timed(name))
        for turn in range(rounds + 1):
            inside |= dict.fromkeys(inside, 0.0)
            jobs = [Job(i, tuple(p), SamplingParams(new, temperature=0.0), (i, 0)) for i, p in enumerate(prompts)]
            whole = _seconds(lambda jobs=jobs: list(loop.run(jobs)))  # type: ignore[misc]
            if turn:
                shares.append(1 - inside["step"] / (whole - inside["prefill"] - inside["prefill_all"]))
    finally:
        for name in inside:
            delattr(rows, name)
    return shares


def padded_seconds(model: PreTrainedModel, jobs: Sequence[Job], batch: int) -> float:
    """Time of transformers' `generate` over left-padded batches in order of arrival, each as long as its longest answer."""
    pad = model.generation_config.pad_token_id or 0

    def run() -> None:
        for at in range(0, len(jobs), batch):
            part = jobs[at : at + batch]
            longest = max(len(j.token_ids) for j in part)
            ids = torch.tensor([[pad] * (longest - len(j.token_ids)) + list(j.token_ids) for j in part])
            mask = torch.tensor([[0] * (longest - len(j.token_ids)) + [1] * len(j.token_ids) for j in part])
            most = max(j.params.max_tokens for j in part)
            model.generate(ids, attention_mask=mask, max_new_tokens=most, min_new_tokens=most, do_sample=False, pad_token_id=pad)  # type: ignore[operator]

    with torch.inference_mode():
        return _seconds(run)


def continuous_seconds(rows: RowForward, words: Any, jobs: Sequence[Job]) -> float:
    """Time of our loop over the same requests; every answer is as long as it was asked for."""
    loop = Decoder(rows, words, frozenset())
    done: list[Any] = []
    seconds = _seconds(lambda: done.extend(loop.run(jobs)))
    assert sorted(len(r.token_ids) for r in done) == sorted(j.params.max_tokens for j in jobs)
    return seconds
