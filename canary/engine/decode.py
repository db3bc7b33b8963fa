"""The loop: propose, one target forward of fixed width, verify, cut, commit; the baseline is the same code without a drafter.

Requests enter as rows become free and never influence each other: tokens depend on a request's prompt, parameters and key alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import torch
from torch.nn.functional import pad

from canary.domain.errors import EngineMemoryError
from canary.engine.admission import WHOLE, Filled, Filling, Pieces, Waiting, obstacle, prefills
from canary.engine.drafters.base import Drafter, Proposal, Round
from canary.engine.forward import RowForward
from canary.engine.hooks import CLEAN, Hooks
from canary.engine.judging import judge, spacing
from canary.engine.record import Record
from canary.engine.requests import Job, Running, Words
from canary.engine.streams import ROUND_SPACING
from canary.engine.together import Batch
from canary.engine.transfer import moved, to_device


class Decoder:
    """Runs requests over a target, with or without a drafter.

    Args:
        target: the target and its rows.
        words: the target's tokenizer.
        eos_ids: tokens that end an answer.
        drafter: None for the baseline.
        num_speculative_tokens: k; 0 without a drafter.
        hooks: the engine's own functions, or a drill's faulty ones.
        clock: seconds; asked when a request's first token is known.
        most: requests that run together at most; as many as the target has rows unless given.
        trace_plain: whether a traced request has trace columns without a drafter too.
        pads: whether a drafted step is always k + 1 wide, so that a row's last bits do not hang on what the others draft.
        pieces: which prompts come in pieces, so that the others step in between.

    Attributes:
        want_tv: whether traces carry the distances of the bank's alternatives (see `trace.trace_rows`).
    """

    def __init__(
        self,
        target: RowForward,
        words: Words,
        eos_ids: frozenset[int],
        drafter: Drafter | None = None,
        num_speculative_tokens: int = 0,
        *,
        hooks: Hooks = CLEAN,
        clock: Callable[[], float] | None = None,
        most: int | None = None,
        trace_plain: bool = False,
        pads: bool = True,
        pieces: Pieces = WHOLE,
    ) -> None:
        if (drafter is None) != (num_speculative_tokens == 0):
            raise ValueError("a drafter needs k of at least 1, and no drafter means k = 0")
        if num_speculative_tokens >= ROUND_SPACING:
            raise ValueError(f"k has to be below {ROUND_SPACING}")
        self.target = target
        self.words = words
        self.eos_ids = eos_ids
        self.drafter = drafter
        self.k = num_speculative_tokens
        self.hooks = hooks
        self.clock = clock
        self._pads = pads
        self.most = target.num_rows if most is None else min(most, target.num_rows)
        self.traces = drafter is not None or trace_plain
        self.want_tv = True
        self._pieces = pieces
        self._filling: Filling | None = None
        self._rows: list[Running] = []
        self._failed: list[Running] = []  # their rows are free already
        self._batch: Batch | None = None

    @torch.inference_mode()
    def run(self, jobs: Sequence[Job], *, traced: bool = False) -> Iterator[Running]:
        """Run all jobs and yield each as it ends, its counts checked.

        Args:
            traced: keep the rows of every emitted token, and (with a drafter, or `trace_plain`) their trace columns.

        Raises:
            IdentityError: a request's counts do not add up.
        """
        waiting = Waiting(jobs, self._pieces, together=self.target.fills_together)
        # Once for all, which saves copies; where that is too much, the request that is too long fails at its own turn.
        with suppress(EngineMemoryError):
            self.target.cache.reserve(max((self._reach(job) for job in jobs), default=0))
        try:
            while waiting or self._rows or self._filling is not None:
                while taken := waiting.take(self._free_rows, filling=self._filling is not None):
                    self._admit(taken, traced)
                    yield from self._retire()
                if self._filling is not None and self._fill(self._filling):
                    self._filling = None
                yield from self._retire()
                if self._rows:
                    self._step()
                    yield from self._retire()
        finally:
            if self._filling is not None:
                self._free(self._filling.row)
                self._filling = None
            while self._rows:
                self._leave(len(self._rows) - 1)

    def _reach(self, job: Job) -> int:
        """Most cached tokens of a job, the padding of its last step included."""
        return min(len(job.token_ids) + job.params.max_tokens, self.target.context) + self.k + 1

    @property
    def _free_rows(self) -> int:
        return self.most - len(self._rows) - (self._filling is not None)

    def _admit(self, jobs: Sequence[Job], traced: bool) -> None:
        """Give jobs rows, and their first tokens where their prompts come in whole."""
        whole = []
        for job in jobs:
            room = self.target.context - len(job.token_ids)
            running = Running(job, min(job.params.max_tokens, room), Record() if traced else None)
            why = obstacle(job, self.words, self.target)
            if why is not None:
                running.fail(why)
                self._failed.append(running)
                continue
            running.shape(self.eos_ids, self.words)
            if self._pieces.take(job):
                self._filling = Filling(running, self.most - 1, self._pieces.size)
            else:
                whole.append(running)
        first, prompts, reaches = len(self._rows), [r.job.token_ids for r in whole], [self._reach(r.job) for r in whole]
        for start, stop, filled in prefills(self.target, first, prompts, reaches):
            self._enter(whole[start:stop], first + start, filled)

    def _fill(self, filling: Filling) -> bool:
        """Give a prompt's next piece to its row; True after the last, with which the request joins the others."""
        filled: Filled | None
        try:
            self.target.cache.reserve(self._reach(filling.running.job))
            filled = filling.advance(self.target)
        except EngineMemoryError as error:
            filled = error
        if filled is not None:
            self._enter([filling.running], filling.row, filled)
        return filled is not None

    def _enter(self, entering: Sequence[Running], row: int, filled: Filled) -> None:
        """Step 0 of requests whose prompts are in rows from `row` on, in which nothing is drafted; they join the running ones."""
        begun: list[int] = []
        for at, running in enumerate(entering):
            try:
                if isinstance(filled, EngineMemoryError):
                    raise filled
                if self.drafter is not None:
                    self.drafter.begin(row + at, running.job.token_ids, self._reach(running.job))
            except EngineMemoryError as error:
                running.fail(str(error))
                self._free(row + at)
                self._failed.append(running)
                continue
            self._move(row + at, row + len(begun))
            begun.append(at)
        if isinstance(filled, EngineMemoryError) or not begun:
            return
        joining, logits = [entering[at] for at in begun], filled if len(begun) == len(entering) else filled[begun]
        self._resolve(row, Batch.of(joining, self.target), logits[:, None], None)
        now = None if self.clock is None else self.clock()
        for at, running in enumerate(joining, row):
            running.first_at = now
            self._rows.append(running)
            self._move(at, len(self._rows) - 1)
        self._batch = None

    def _step(self) -> None:
        """One round for all rows."""
        if self._batch is None:
            self._batch = Batch.of(tuple(self._rows), self.target)
        proposal = self._propose(self._batch)
        while self._rows:
            tokens = to_device([[self.hooks.pending(r)] for r in self._rows], self.target.device)  # [n, 1]
            if proposal is not None:
                # A draft that could not be drawn is never accepted, but a model must not see its negative id.
                tokens = torch.cat([tokens, proposal.tokens.clamp_min(0)], 1)  # [n, k + 1]
            try:
                logits = self.target.step(tokens)
            except EngineMemoryError as error:
                proposal = self._without_longest(proposal, error)
                continue
            self._resolve(0, self._batch, self.hooks.logits(logits), proposal)
            return

    def _without_longest(self, proposal: Proposal | None, error: EngineMemoryError) -> Proposal | None:
        """Fail the request with the longest row, which needs the most memory, and give the round that is left."""
        row, order = max(range(len(self._rows)), key=self.target.lengths.__getitem__), list(range(len(self._rows)))
        self._rows[row].fail(str(error))
        self._failed.append(self._leave(row))
        order[row] = order[-1]  # as `_leave` moves the last row
        del order[-1]
        self._batch = Batch.of(tuple(self._rows), self.target)
        if proposal is None or not order:
            return None
        probs = None if proposal.probs is None else proposal.probs[order]
        return Proposal(proposal.tokens[order], tuple(proposal.lengths[i] for i in order), probs)

    def _propose(self, batch: Batch) -> Proposal | None:
        """A round of drafts on the target's device, padded to k columns if wished; None when nobody drafts."""
        if self.drafter is None:
            return None
        # The last token of an answer is always the target's own, so a draft for it would be wasted.
        limits = tuple(max(0, min(self.k, r.max_tokens - len(r.token_ids) - 1)) for r in batch.running)
        if max(limits) == 0:
            return None
        rows = None if batch.greedy else batch.rows(1)
        proposal = self.drafter.propose(
            Round(limits, rows, batch.keys, batch.positions(1, spacing(self.hooks))[:, 0], batch.prefixes)
        )
        if max(proposal.lengths) == 0:
            return None
        missing, device = self.k - proposal.tokens.shape[1] if self._pads else 0, self.target.device
        probs = None if proposal.probs is None else pad(moved(proposal.probs, device), (0, 0, 0, missing))
        return Proposal(pad(moved(proposal.tokens, device), (0, missing)), proposal.lengths, probs)

    def _resolve(self, first: int, batch: Batch, logits: torch.Tensor, proposal: Proposal | None) -> None:
        """Judge one round and emit its tokens.

        Args:
            first: row of the batch's first request.
            logits: raw target rows, [n, k + 1, V], or [n, 1, V] without a proposal.
        """
        if proposal is None:
            proposal = Proposal(torch.zeros(len(logits), 0, dtype=torch.int64, device=logits.device), (0,) * len(logits))
        records = [r.record for r in batch.running if r.record is not None]
        step = judge(self.hooks, batch, logits, proposal, traced=bool(records) and self.traces)
        kept = []
        lines, told = step.read()
        for row, (running, line) in enumerate(zip(batch.running, lines, strict=True), start=first):
            if not line.valid:
                banned = ", or its bans and biases leave no token" if running.shaping is not None else ""
                running.fail(f"the target's or the drafter's row is not a distribution (NaN or infinite logits{banned})")
                self.target.cache.clear(row)
                kept.append(0)
                continue
            if running.token_ids:  # a prefill sets its own length
                self.hooks.advance(self.target.lengths, row, running, line)
            drafted, accepted = self.hooks.count(line)
            running.drafted.append(drafted)
            running.accepted.append(accepted)
            tokens = self.hooks.take(running, line.token_ids, self.eos_ids, self.words)
            kept.append(len(tokens))
            if self.drafter is not None and running.finish_reason is None:
                self.drafter.commit(row, tokens, line.num_accepted)
        if batch.telling is not None:
            batch.telling.give(told, kept, [r.logprobs for r in batch.running])
        if records:
            step.keep_rows(records, kept)
            step.trace(records, kept, want_tv=self.want_tv)

    def _retire(self) -> Iterator[Running]:
        """Free the rows of requests that have ended, and hand those over."""
        ended = [row for row, running in enumerate(self._rows) if running.finish_reason is not None]
        left, self._failed = self._failed + [self._leave(row) for row in reversed(ended)], []
        for running in left:
            running.stats(self.k)
            running.check_end(self.eos_ids, self.words)
            yield running

    def _leave(self, row: int) -> Running:
        """Free a row; the last row moves into it, so that the running rows stay dense."""
        running, last = self._rows[row], len(self._rows) - 1
        self._batch = None
        self._free(row)
        self._move(last, row)
        self._rows[row] = self._rows[last]
        self._rows.pop()
        return running

    def _free(self, row: int) -> None:
        self.target.lengths[row] = 0
        if self.drafter is not None:
            self.drafter.end(row)

    def _move(self, source: int, target: int) -> None:
        """What is known of a row moves into a free one."""
        if source != target:
            self.target.cache.move(source, target)
            if self.drafter is not None:
                self.drafter.move(source, target)
