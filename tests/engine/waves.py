"""The loop for many requests of one prompt: they enter together behind one forward; everything after that is the loop's own.

It exists for tests that need tens of thousands of answers, and must never judge, draw or emit a token by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, islice

import torch
from transformers import PreTrainedModel

from canary.domain.pairs import DrafterKind
from canary.engine.adaptive import AdaptiveK, CostTable
from canary.engine.decode import Decoder
from canary.engine.drafters.adaptive import AdaptiveDrafter
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.composite import CompositeDrafter
from canary.engine.drafters.draft_model import DraftModelDrafter
from canary.engine.drafters.drawing import Drawing
from canary.engine.drafters.early_exit import EarlyExitDrafter
from canary.engine.drafters.heads import HeadsDrafter
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.hooks import CLEAN, Hooks
from canary.engine.record import Record
from canary.engine.requests import Job, Running
from canary.engine.together import Batch
from tests.engine.tiny import noisy_copy, tiny_heads, tiny_tokenizer

WIDE = 256  # requests of a wave
NOISE = 0.12  # of the draft model: about half of its drafts are accepted
Make = Callable[[PreTrainedModel, RowForward, Drawing], Drafter]

# Many rows make a wide step dear, so the adaptive drafters go from two drafts to one to none as a wave thins out.
_STEP = {(1, 1): 4.0, (1, 2): 4.05, (1, 3): 4.1, (WIDE, 1): 4.0, (WIDE, 2): 4.4, (WIDE, 3): 5.7}
_DRAFT = {(1, 1): 0.1, (1, 2): 0.2, (WIDE, 1): 0.2, (WIDE, 2): 0.6}


def _draft_model(model: PreTrainedModel, rows: RowForward, drawing: Drawing) -> DraftModelDrafter:
    return DraftModelDrafter(noisy_copy(model, NOISE), rows.num_rows, drawing)


def _composite(model: PreTrainedModel, rows: RowForward, drawing: Drawing) -> Drafter:
    copying = NgramDrafter(rows.num_rows, 3)
    return CompositeDrafter(copying, _draft_model(model, rows, drawing), rows.num_rows, rows.vocab_size)


def _adaptive(make: Make, draft: Mapping[tuple[int, int], float]) -> Make:
    """k between 0 and 2, the real choice under a cost table of the test's own."""

    def made(model: PreTrainedModel, rows: RowForward, drawing: Drawing) -> Drafter:
        return AdaptiveDrafter(make(model, rows, drawing), AdaptiveK(CostTable(_STEP, draft), 2, rows.num_rows))

    return made


def _ngram(model: PreTrainedModel, rows: RowForward, drawing: Drawing) -> Drafter:
    return NgramDrafter(rows.num_rows, 3)


MAKE: Mapping[str, Make] = {
    "ngram": _ngram,
    "draft_model": _draft_model,
    "early_exit": lambda m, rows, drawing: EarlyExitDrafter(rows, m.config.num_hidden_layers - 1, drawing),
    "heads": lambda m, rows, drawing: HeadsDrafter(rows, tiny_heads(m, 3), drawing),
    "composite": _composite,
    "adaptive_ngram": _adaptive(_ngram, {}),
    "adaptive_draft_model": _adaptive(_draft_model, _DRAFT),
}
KINDS = {name: DrafterKind.ONE_HOT if name.endswith("ngram") else DrafterKind.DENSE for name in MAKE}


class Waves(Decoder):
    """Runs requests that ask for the same behind the same prompt and differ in their keys."""

    sizes: Sequence[int] = (WIDE, WIDE // 4)  # one after the other, so that steps of many widths are seen

    @torch.inference_mode()
    def run(self, jobs: Sequence[Job], *, traced: bool = False) -> Iterator[Running]:
        """Run all jobs and yield each as it ends, its counts checked.

        Args:
            traced: see `Decoder.run`.
        """
        left, sizes = iter(jobs), cycle(self.sizes)
        while wave := list(islice(left, min(next(sizes), self.most))):
            self._enter(wave, traced)
            yield from self._retire()
            while self._rows:
                self._step()
                yield from self._retire()

    def _enter(self, jobs: Sequence[Job], traced: bool) -> None:
        """Give every job a row and emit its first token: step 0, in which nothing is drafted."""
        prompt, params, count = jobs[0].token_ids, jobs[0].params, len(jobs)
        assert all(job.token_ids == prompt and job.params is params for job in jobs)
        self._rows = [Running(job, params.max_tokens, Record() if traced else None) for job in jobs]
        self._batch = None
        self._rows[0].shape(self.eos_ids, self.words)
        target = self.target
        target.cache.reserve(self._reach(jobs[0]))
        for row, running in enumerate(self._rows):
            running.shaping = self._rows[0].shaping
            target.prefill(row, prompt[:-1])
        logits = target.step(torch.full((count, 1), prompt[-1]))  # [n, 1, V]; heads find their hidden states, too
        target.lengths[:count] = [len(prompt)] * count
        if self.drafter is not None:
            for row in range(count):
                self.drafter.begin(row, prompt, self._reach(jobs[0]))
        self._resolve(0, Batch.of(self._rows, target), logits, None)


def _share_prompt(rows: RowForward) -> None:
    """From now on a prefill of the first row fills all rows, and those of the others, which must be of the same prompt, nothing.

    Only for loops whose rows are all free when the first one is filled.
    """
    fill, held = rows.prefill, []

    def prefill(row: int, token_ids: Sequence[int]) -> torch.Tensor:
        if row == 0:
            held[:] = [list(token_ids), fill(0, token_ids)]
            for layer in rows.cache.layers:
                for stored in (layer.keys, layer.values):
                    stored[1:, :, : len(token_ids)] = stored[:1, :, : len(token_ids)]
        assert held[0] == list(token_ids)
        rows.lengths[row] = len(token_ids)
        logits: torch.Tensor = held[1]
        return logits

    rows.prefill = prefill  # type: ignore[method-assign]


def _loops_of(drafter: Drafter | None) -> Iterator[RowForward]:
    """The loops that a drafter has beside the target's."""
    if isinstance(drafter, DraftModelDrafter):
        yield drafter.rows
    for inner in ("drafter", "_fallback"):
        if hasattr(drafter, inner):
            yield from _loops_of(getattr(drafter, inner))


def speculating(
    model: PreTrainedModel, drafter: str, hooks: Hooks = CLEAN, *, k: int = 2, rows: int = WIDE, loop: type[Decoder] = Waves
) -> Decoder:
    """A loop over a tiny model.

    Args:
        drafter: of `MAKE`, or `none` for the baseline.
        hooks: the engine's own, or a fault's; the drafter draws with them as in the engine.
        loop: `Decoder` lets every request in by itself.
    """
    target, words = RowForward(model, rows), tiny_tokenizer()
    if drafter == "none":
        made = loop(target, words, frozenset(), hooks=hooks)
    else:
        proposing = hooks.drafter(MAKE[drafter](model, target, Drawing(hooks.draw, hooks.uniforms)))
        made = loop(target, words, frozenset(), proposing, k, hooks=hooks)
    if loop is Waves:
        for each in (target, *_loops_of(made.drafter)):
            _share_prompt(each)
    return made
