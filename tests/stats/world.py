"""World A of the statistics' power tables: a table model whose requests run through the shipped `verify` and `trace`.

How it is made: 256 tokens, 512 contexts. Per context, logits = s * N(0,1) with s uniform in .8 to 2.2, minus .8 * log(rank) for a
random permutation of a Zipf unigram, plus, with probability .65, a bump uniform in 2 to 9 on the largest logit; draft logits =
.9 * target logits + .9 * N(0,1). The next context is a hash of (prompt, last two tokens). Temperature 1, no filter, k = 4, 96
tokens a request.

Nothing here samples or reduces a row by itself: draws go through `sampling.draw` and `verify`, scalars come from `trace_rows`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from canary.domain.pairs import BLOCK_COLUMNS, TRACE_COLUMNS, Arm, Columns, DecodeStats, DrafterKind, Generation, Pair, Scheme
from canary.domain.policy import Gates
from canary.domain.traffic import Stratum
from canary.engine.faults import get_fault
from canary.engine.hooks import METHODS
from canary.engine.sampling import Draw, draw
from canary.engine.trace import gather_emitted, trace_rows
from canary.engine.verify import Verified, Verify
from canary.stats.part import Context

VOCAB, CONTEXTS, LENGTH, K = 256, 512, 96, 4
CALIBRATING = 20


@dataclass(frozen=True)
class World:
    """Rows by context.

    Args:
        target, draft: [CONTEXTS, VOCAB] float32 probabilities.
        unfiltered: the target's, without temperature and filters; None where that is the same.
    """

    target: Tensor
    draft: Tensor
    unfiltered: Tensor | None = None

    @classmethod
    def make(cls, seed: int = 0) -> World:
        rng = np.random.default_rng(seed)
        spread = rng.uniform(0.8, 2.2, (CONTEXTS, 1))
        rank = rng.permutation(VOCAB) + 1
        logits = spread * rng.standard_normal((CONTEXTS, VOCAB)) - 0.8 * np.log(rank)
        bump = np.where(rng.random(CONTEXTS) < 0.65, rng.uniform(2, 9, CONTEXTS), 0.0)
        logits[np.arange(CONTEXTS), logits.argmax(1)] += bump
        drafts = 0.9 * logits + 0.9 * rng.standard_normal((CONTEXTS, VOCAB))
        return cls(*(torch.tensor(each, dtype=torch.float64).softmax(-1).float() for each in (logits, drafts)))

    @property
    def guess(self) -> Tensor:
        """What a one-hot drafter proposes: [CONTEXTS]."""
        return self.draft.argmax(1)

    def contaminated(self, alternative: str, share: float, kind: DrafterKind) -> Tensor:
        """Target rows with a share of an alternative mixed in: what a verifier that is wrong by exactly that share draws from.

        Returns:
            [2, CONTEXTS, VOCAB], at positions without and with a draft; alternatives that are built from the draft need one.
        """
        p, q = self.target.double(), self.draft.double()
        if kind is DrafterKind.ONE_HOT:
            q = torch.nn.functional.one_hot(self.guess, VOCAB).double()
        common = torch.minimum(p, q)
        rows = {
            "draft": q,
            "residual": common + (1 - common.sum(1, keepdim=True)) * p,
            "hot": p**0.67 / (p**0.67).sum(1, keepdim=True),
            "cold": p**1.5 / (p**1.5).sum(1, keepdim=True),
        }
        mixed = (1 - share) * p + share * rows[alternative]
        return torch.stack([p if alternative in ("draft", "residual") else mixed, mixed]).float()


@dataclass(frozen=True)
class Run:
    """Requests of one simulation, all of `LENGTH` tokens.

    Args:
        tokens: [requests, LENGTH].
        columns: `TRACE_COLUMNS`, each [requests, LENGTH] or [requests, LENGTH, width] in its stored type.
    """

    tokens: np.ndarray
    columns: dict[str, np.ndarray]
    rounds: list[list[tuple[int, int]]]
    cut: np.ndarray


@dataclass
class Engine:
    """A speculative engine over the world.

    Args:
        kind: dense drafts are drawn from the draft rows; one-hot ones are their argmax, of a length that the context fixes, 0
            included, as a match of an n-gram would.
        fault: name of a fault of `engine.faults`.
        true_rows: what the verifier is given as target rows, see `World.contaminated`; the trace always sees the world's own.
        traced: reduce the rows to `TRACE_COLUMNS`; without it only the tokens and counts are kept.
        scheme: how drafts are judged, token by token or together.
    """

    world: World
    kind: DrafterKind
    fault: str | None = None
    true_rows: Tensor | None = None
    k: int = K
    traced: bool = True
    scheme: Scheme = Scheme.TOKEN

    def __post_init__(self) -> None:
        verify = METHODS[self.scheme].verify
        self._verify: Verify = verify
        self._draw: Draw = draw
        if self.fault is not None:
            fault = get_fault(self.fault, self.kind)
            self._verify, self._draw = fault.wrap_verify(verify), fault.wrap_draw(draw)

    def run(self, requests: int, seed: int, *, want_tv: bool = False, prompts: Tensor | None = None) -> Run:
        """Run requests side by side; every one draws from its own columns of one seeded stream.

        Args:
            prompts: [requests] int64 below 2**30; drawn where None.
        """
        generator = torch.Generator().manual_seed(seed)
        if prompts is None:
            prompts = torch.randint(0, 1 << 30, (requests,), generator=generator)
        out = _Recorder(requests, self.scheme)
        last = torch.zeros(requests, 2, dtype=torch.int64)  # last two tokens
        count = torch.zeros(requests, dtype=torch.int64)
        previous = torch.zeros(requests, dtype=torch.int64)  # context of the last emitted token
        while len(active := (count < LENGTH).nonzero()[:, 0]):
            contexts, drafts, lengths = self._propose(prompts[active], last[active], generator)
            accept_uniforms = torch.rand(len(active), self.k, generator=generator, dtype=torch.float64)
            next_uniforms = torch.rand(len(active), self.k + 1, generator=generator, dtype=torch.float64)
            target_rows = self.world.target[contexts]
            if self.true_rows is not None:
                target_rows = self.true_rows[(torch.arange(self.k + 1) < lengths[:, None]).long(), contexts]
            draft_rows = self.world.draft[contexts[:, :-1]] if self.kind is DrafterKind.DENSE else None
            found = self._verify(target_rows, drafts, lengths, draft_rows, accept_uniforms, next_uniforms)
            emitted = torch.minimum(found.num_accepted + 1, LENGTH - count[active])
            width = VOCAB if self.traced else 1  # who only wants the tokens is spared the rows
            seen = self.world.target[:, :width]
            rows = gather_emitted(
                found,
                seen[contexts],
                drafts,
                lengths,
                None if draft_rows is None else draft_rows[..., :width],
                accept_uniforms,
                num_emitted=emitted,
                greedy=torch.zeros(len(active), dtype=torch.bool),
                pit_uniforms=torch.rand(len(active), self.k + 1, generator=generator, dtype=torch.float64),
                previous_probs=seen[previous[active]],
                has_previous=count[active] > 0,
                unfiltered_probs=None if self.world.unfiltered is None else self.world.unfiltered[contexts],
                scheme=self.scheme if self.traced else Scheme.TOKEN,
            )
            columns = trace_rows(rows, want_tv=want_tv) if self.traced else {}
            out.add(active, count[active], rows.owner, rows.position_in_round, rows.tokens, columns)
            out.note(active, lengths, found, emitted)
            written = torch.cat([last[active], self._written(drafts, found)], 1)  # [active, 2 + k + 1]
            ends = torch.stack([emitted, emitted + 1], 1)
            last[active] = written.gather(1, ends)
            previous[active] = contexts.gather(1, emitted[:, None] - 1)[:, 0]
            count[active] += emitted
        return out.run()

    def _propose(self, prompts: Tensor, last: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """(contexts [B, k+1] along the drafts, drafts [B, k], draft lengths [B])."""
        contexts, drafts = [_context(prompts, last)], []
        for _ in range(self.k):
            uniforms = torch.rand(len(prompts), generator=generator, dtype=torch.float64)
            if self.kind is DrafterKind.DENSE:
                token = self._draw(self.world.draft[contexts[-1]], uniforms).tokens
            else:
                token = self.world.guess[contexts[-1]]
            drafts.append(token)
            last = torch.stack([last[:, 1], token], 1)
            contexts.append(_context(prompts, last))
        lengths = torch.full_like(prompts, self.k)
        if self.kind is DrafterKind.ONE_HOT:
            lengths = (contexts[0] % (self.k + 1)).clamp_max(self.k)
        return torch.stack(contexts, 1), torch.stack(drafts, 1) if drafts else prompts.new_zeros(len(prompts), 0), lengths

    @staticmethod
    def _written(drafts: Tensor, found: Verified) -> Tensor:
        """The round's tokens, [B, k+1]: accepted drafts, then the next token; what follows is never read."""
        tokens = torch.cat([drafts, found.next_token[:, None]], 1)
        return tokens.scatter(1, found.num_accepted[:, None], found.next_token[:, None])


def _context(prompts: Tensor, last: Tensor) -> Tensor:
    """Hash of (prompt, last two tokens), [B]."""
    mixed = prompts * 2654435761 + last[:, 0] * 40503 + last[:, 1] * 2246822519 + 374761393
    mixed = (mixed ^ (mixed >> 15)) * 2246822519
    mixed = (mixed ^ (mixed >> 13)) * 3266489917
    return (mixed ^ (mixed >> 16)) % CONTEXTS


class _Recorder:
    """Collects what every round emitted."""

    def __init__(self, requests: int, scheme: Scheme = Scheme.TOKEN) -> None:
        self.tokens = np.zeros((requests, LENGTH), dtype=np.int64)
        self.columns = {
            name: np.zeros((requests, LENGTH) if width == 1 else (requests, LENGTH, width), dtype=kind)
            for name, (kind, width) in {**TRACE_COLUMNS, **(BLOCK_COLUMNS if scheme is Scheme.BLOCK else {})}.items()
        }
        self.rounds: list[list[tuple[int, int]]] = [[] for _ in range(requests)]
        self.cut = np.zeros(requests, dtype=np.int64)

    def add(
        self, active: Tensor, count: Tensor, owner: Tensor, position: Tensor, tokens: Tensor, columns: dict[str, Tensor]
    ) -> None:
        request, at = active[owner].numpy(), (count[owner] + position).numpy()
        self.tokens[request, at] = tokens.numpy()
        for name, values in columns.items():
            self.columns[name][request, at] = values.numpy()

    def note(self, active: Tensor, lengths: Tensor, found: Verified, emitted: Tensor) -> None:
        accepted = found.num_accepted
        for request, drafted, taken in zip(active.tolist(), lengths.tolist(), accepted.tolist(), strict=True):
            self.rounds[request].append((drafted, taken))
        self.cut[active.numpy()] += (accepted + 1 - emitted).numpy()

    def run(self) -> Run:
        return Run(self.tokens, self.columns, self.rounds, self.cut)


def columns_of(run: Run, request: int) -> Columns:
    """One request's trace as it is stored."""
    return Columns(LENGTH, {name: np.ascontiguousarray(values[request]).tobytes() for name, values in run.columns.items()})


def pair_of(run: Run, request: int, ordinal: int, baseline_tokens: tuple[int, ...], calibration_hash: str = "") -> Pair:
    """One request as a pair of the sampled stratum."""
    drafted, accepted = zip(*run.rounds[request], strict=True)
    stats = DecodeStats(K, drafted, accepted, int(run.cut[request]))
    stats.check(LENGTH)
    candidate = Generation(
        Arm.CANDIDATE, tuple(run.tokens[request].tolist()), "", "length", stats, trace=columns_of(run, request)
    )
    plain = DecodeStats(0, (0,) * len(baseline_tokens), (0,) * len(baseline_tokens))
    baseline = Generation(Arm.BASELINE, baseline_tokens, "", "length", plain)
    return Pair(
        pair_id=f"{ordinal:032x}",
        route="world",
        epoch="e",
        attempt=1,
        ordinal=ordinal,
        stratum=Stratum.SAMPLED,
        first=Arm.BASELINE,
        baseline=baseline,
        candidate=candidate,
        increments=b"",
        calibration_hash=calibration_hash,
    )


def context_of(kind: DrafterKind, gates: Gates | None = None, scheme: Scheme = Scheme.TOKEN) -> Context:
    """The context of an attempt in this world, not yet calibrated."""
    gates = gates or Gates()
    return Context(gates, gates.alpha, kind, K, exact_rows=True, vocab_size=VOCAB, scheme=scheme)


@dataclass(frozen=True)
class Item:
    """What the fold reads of a stored pair."""

    ordinal: int
    increments: bytes | None
    calibration_hash: str
    stored_at: float
