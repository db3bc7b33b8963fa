"""The loop: propose, one target forward of fixed width, verify, cut, commit; the baseline is the same code without a drafter.

Requests enter as rows become free and never influence each other: tokens depend on a request's prompt, parameters and key alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import pad

from canary.engine.drafters.base import Drafter, Proposal, Round
from canary.engine.forward import RowForward
from canary.engine.hooks import CLEAN, Hooks
from canary.engine.record import Draws, Record, Step
from canary.engine.requests import Job, Running, Words
from canary.engine.rows import Rows
from canary.engine.streams import Stream
from canary.engine.verify import verify_greedy

# A position is judged at most once and drawn at most once, so one stream serves recovered, bonus and plain tokens.
_STREAMS = (Stream.ACCEPT, Stream.SAMPLE, Stream.PIT)


@dataclass(slots=True)
class _Batch:
    """What a set of rows has in common until one of them leaves.

    Args:
        keys: [n, 2] int64.
    """

    running: Sequence[Running]
    keys: torch.Tensor
    greedy: bool
    _rows: dict[int, Rows] = field(default_factory=dict)

    @classmethod
    def of(cls, running: Sequence[Running], device: torch.device) -> _Batch:
        keys = torch.tensor([r.job.key for r in running], device=device)
        return cls(running, keys, all(r.job.greedy for r in running))

    def rows(self, width: int) -> Rows:
        """Sampling parameters of `width` rows per request."""
        if width not in self._rows:
            self._rows[width] = Rows.of([r.job.params for r in self.running], width, self.keys.device)
        return self._rows[width]

    def positions(self, width: int) -> torch.Tensor:
        """Index of the next `width` tokens in each answer, [n, width] int64."""
        emitted = torch.tensor([len(r.token_ids) for r in self.running], device=self.keys.device)
        return emitted[:, None] + torch.arange(width, device=self.keys.device)


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
    ) -> None:
        if (drafter is None) != (num_speculative_tokens == 0):
            raise ValueError("a drafter needs k of at least 1, and no drafter means k = 0")
        self.target = target
        self.words = words
        self.eos_ids = eos_ids
        self.drafter = drafter
        self.k = num_speculative_tokens
        self.hooks = hooks
        self.clock = clock
        self.most = target.num_rows if most is None else min(most, target.num_rows)
        self.traces = drafter is not None or trace_plain
        self.want_tv = True
        self._rows: list[Running] = []
        self._batch: _Batch | None = None

    @torch.inference_mode()
    def run(self, jobs: Sequence[Job], *, traced: bool = False) -> Iterator[Running]:
        """Run all jobs and yield each as it ends, its counts checked.

        Args:
            traced: keep the rows of every emitted token, and (with a drafter, or `trace_plain`) their trace columns.

        Raises:
            IdentityError: a request's counts do not add up.
        """
        queue = deque(jobs)
        self.target.cache.reserve(max((self._reach(job) for job in jobs), default=0))
        try:
            while queue or self._rows:
                while queue and len(self._rows) < self.most:
                    self._admit(queue.popleft(), traced)
                    yield from self._retire()
                if self._rows:
                    self._step()
                    yield from self._retire()
        finally:
            while self._rows:
                self._leave(len(self._rows) - 1)

    def _reach(self, job: Job) -> int:
        """Most cached tokens of a job, the padding of its last step included."""
        return min(len(job.token_ids) + job.params.max_tokens, self.target.context) + self.k + 1

    def _admit(self, job: Job, traced: bool) -> None:
        """Give a job the next row and emit its first token: step 0, in which nothing is drafted."""
        room = self.target.context - len(job.token_ids)
        running = Running(job, min(job.params.max_tokens, room), Record() if traced else None)
        row = len(self._rows)
        self._rows.append(running)
        self._batch = None
        why = job.error or self._obstacle(job)
        if why is not None:
            running.fail(why)
            return
        logits = self.target.prefill(row, job.token_ids)
        if self.drafter is not None:
            self.drafter.begin(row, job.token_ids, self._reach(job))
        self._resolve(row, _Batch.of([running], self.target.device), logits[None, None], None)
        if self.clock is not None:
            running.first_at = self.clock()

    def _obstacle(self, job: Job) -> str | None:
        if not job.token_ids:
            return "the prompt has no tokens"
        if len(job.token_ids) >= self.target.context:
            return f"the prompt has {len(job.token_ids)} tokens, but the model's context ends at {self.target.context}"
        if job.params.max_tokens < 1:
            return f"max_tokens is {job.params.max_tokens}, but an answer has at least one token"
        return None

    def _step(self) -> None:
        """One round for all rows."""
        if self._batch is None:
            self._batch = _Batch.of(tuple(self._rows), self.target.device)
        proposal = self._propose(self._batch)
        tokens = torch.tensor([[self.hooks.pending(r)] for r in self._rows], device=self.target.device)  # [n, 1]
        if proposal is not None:
            # A draft that could not be drawn is never accepted, but a model must not see its negative id.
            tokens = torch.cat([tokens, proposal.tokens.clamp_min(0)], 1)  # [n, k + 1]
        self._resolve(0, self._batch, self.hooks.logits(self.target.step(tokens)), proposal)

    def _propose(self, batch: _Batch) -> Proposal | None:
        """A round of drafts padded to k columns on the target's device, None when nobody drafts."""
        if self.drafter is None:
            return None
        # The last token of an answer is always the target's own, so a draft for it would be wasted.
        limits = tuple(max(0, min(self.k, r.max_tokens - len(r.token_ids) - 1)) for r in batch.running)
        if max(limits) == 0:
            return None
        rows = None if batch.greedy else batch.rows(1)
        proposal = self.drafter.propose(Round(limits, rows, batch.keys, batch.positions(1)[:, 0]))
        if max(proposal.lengths) == 0:
            return None
        missing, device = self.k - proposal.tokens.shape[1], self.target.device
        probs = None if proposal.probs is None else pad(proposal.probs.to(device), (0, 0, 0, missing))
        return Proposal(pad(proposal.tokens.to(device), (0, missing)), proposal.lengths, probs)

    def _resolve(self, first: int, batch: _Batch, logits: torch.Tensor, proposal: Proposal | None) -> None:
        """Judge one round and emit its tokens.

        Args:
            first: row of the batch's first request.
            logits: raw target rows, [n, k + 1, V], or [n, 1, V] without a proposal.
        """
        if proposal is None:
            proposal = Proposal(torch.zeros(len(logits), 0, dtype=torch.int64, device=logits.device), (0,) * len(logits))
        records = [r.record for r in batch.running if r.record is not None]
        step = self._judge(batch, logits, proposal, bool(records) and self.traces)
        kept = []
        for row, (running, line) in enumerate(zip(batch.running, step.lines(), strict=True), start=first):
            if not line.valid:
                running.fail("the target's or the drafter's row is not a distribution (NaN or infinite logits)")
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
        if records:
            step.keep_rows(records, kept)
            step.trace(records, kept, want_tv=self.want_tv)

    def _judge(self, batch: _Batch, logits: torch.Tensor, proposal: Proposal, traced: bool) -> Step:
        """Verify one round; an untraced round of greedy rows needs no probabilities."""
        width = logits.shape[1]
        lengths = torch.tensor(proposal.lengths, device=logits.device)
        if batch.greedy and not traced:
            return Step(logits, proposal, lengths, verify_greedy(logits, proposal.tokens, lengths))
        rows = batch.rows(width)
        probs = self.hooks.process(logits, rows, lengths)
        which = torch.tensor(_STREAMS, device=logits.device)[:, None, None]
        accept, following, pit = self.hooks.uniforms(batch.keys, which, batch.positions(width).expand(len(_STREAMS), -1, -1))
        accept = accept[:, :-1]  # [n, k]; the others are [n, k + 1]
        verified = self.hooks.verify(probs, proposal.tokens, lengths, proposal.probs, accept, following)
        draws = Draws(probs, rows, accept, pit) if traced else None
        return Step(logits, proposal, lengths, verified, draws)

    def _retire(self) -> Iterator[Running]:
        """Free the rows of requests that have ended, and hand those over."""
        ended = [row for row, running in enumerate(self._rows) if running.finish_reason is not None]
        for row in reversed(ended):
            running = self._leave(row)
            running.stats(self.k)
            running.check_end(self.eos_ids, self.words)
            yield running

    def _leave(self, row: int) -> Running:
        """Free a row; the last row moves into it, so that the running rows stay dense."""
        running, last = self._rows[row], len(self._rows) - 1
        self._batch = None
        self.target.lengths[row] = 0
        if self.drafter is not None:
            self.drafter.end(row)
        if row != last:
            self.target.cache.move(last, row)
            if self.drafter is not None:
                self.drafter.move(last, row)
        self._rows[row] = self._rows[last]
        self._rows.pop()
        return running
