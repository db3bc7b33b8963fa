"""One-step means of every bet and certificate over many random rows at once, each visited token by token.

The per-token scalars are those of the shipped trace, in float64; the truth that they are weighed with is written out here. A mean
above 1 + 1e-12 under its null is a bet that would kill, or certify, too often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from canary.domain.pairs import ALTERNATIVES, TILTS, DrafterKind, Provenance
from canary.engine.trace import EmittedRows, trace_rows
from canary.stats import component_bets as components
from canary.stats.bank import BURST_LAMBDAS, log_burst
from canary.stats.bets import DEGREES, LAMBDAS, legendre, log_bets, unigram_log_ratio
from canary.stats.certificates import MAX_STRENGTH, log_certificate, log_pit_certificate, log_request_certificate
from canary.stats.judged import impossible
from canary.stats.pit import log_pit_bets

VOCAB = 6
EXACT = 1e-12
NODES, WEIGHTS = np.polynomial.legendre.leggauss(5)  # exact to degree 9: every PIT bet is a polynomial of degree 4
V, V_WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2

Means = Iterator[tuple[str, np.ndarray]]  # what is bet, and its mean for every row


@dataclass(frozen=True)
class Rows:
    """N positions.

    Args:
        target, draft, previous, unfiltered: [N, VOCAB] float64.
        drafts: [N] judged draft of each.
    """

    kind: DrafterKind
    target: Tensor
    draft: Tensor
    previous: Tensor
    unfiltered: Tensor
    drafts: Tensor

    @property
    def p(self) -> np.ndarray:
        return (self.target / self.target.sum(1, keepdim=True)).numpy()

    @property
    def q(self) -> np.ndarray:
        """What the drafts come from, [N, VOCAB]."""
        one_hot = torch.nn.functional.one_hot(self.drafts, VOCAB).double()
        return (self.draft if self.kind is DrafterKind.DENSE else one_hot).numpy()


def random_rows(count: int, kind: DrafterKind, seed: int) -> Rows:
    """Rows of every sharpness, with zeros, ties and certainties; draft rows that equal the target's or share nothing with it."""
    rng = np.random.default_rng(seed)

    def rows() -> np.ndarray:
        found = rng.dirichlet(np.ones(VOCAB), count) ** rng.choice([0.3, 1.0, 3.0, 12.0], (count, 1))
        found *= rng.random((count, VOCAB)) > rng.choice([0.0, 0.0, 0.5], (count, 1))
        tied = rng.random(count) < 0.1
        found[tied] = np.round(3 * found[tied] / found[tied].max(1, keepdims=True).clip(1e-300))
        empty = found.sum(1) == 0
        found[empty, rng.integers(0, VOCAB, empty.sum())] = 1.0
        certain = rng.random(count) < 0.05
        found[certain] = np.eye(VOCAB)[rng.integers(0, VOCAB, certain.sum())]
        return np.asarray(found / found.sum(1, keepdims=True))

    target, draft = rows(), rows()
    same = rng.random(count) < 0.1
    draft[same] = target[same]
    apart = rng.random(count) < 0.1
    target[apart, : VOCAB // 2], draft[apart, VOCAB // 2 :] = 0.0, 0.0
    for each in (target, draft):
        each[each.sum(1) == 0] = 1 / VOCAB
        each /= each.sum(1, keepdims=True)
    tensors = (torch.tensor(each) for each in (target, draft, rows(), rows()))
    return Rows(kind, *tensors, torch.tensor(rng.integers(0, VOCAB, count)))


def traced(rows: Rows, provenance: Provenance, v: float = 0.5) -> dict[str, np.ndarray]:
    """Trace columns of every emitted token, [N, VOCAB] or [N, VOCAB, width]; an accepted token is its own draft."""
    count = len(rows.target)
    tokens = torch.arange(VOCAB).repeat(count)
    accepted = provenance is Provenance.ACCEPTED

    def spread(each: Tensor) -> Tensor:
        return each.repeat_interleave(VOCAB, 0)

    columns = trace_rows(
        EmittedRows(
            owner=torch.zeros(len(tokens), dtype=torch.int64),
            tokens=tokens,
            target_probs=spread(rows.target),
            position_in_round=torch.zeros(len(tokens), dtype=torch.int64),
            provenance=torch.full((len(tokens),), int(provenance)),
            drafted=torch.ones(len(tokens), dtype=torch.bool),
            greedy=torch.zeros(len(tokens), dtype=torch.bool),
            pit_uniforms=torch.full((len(tokens),), v, dtype=torch.float64),
            draft_tokens=tokens if accepted else spread(rows.drafts),
            accept_uniform=torch.zeros(len(tokens), dtype=torch.float64),
            previous_probs=spread(rows.previous),
            has_previous=torch.ones(len(tokens), dtype=torch.bool),
            draft_probs=spread(rows.draft) if rows.kind is DrafterKind.DENSE else None,
            unfiltered_probs=spread(rows.unfiltered),
        ),
        want_tv=False,
    )
    return {name: values.view(count, VOCAB, *values.shape[1:]).numpy() for name, values in columns.items()}


def mean(p: np.ndarray, values: np.ndarray) -> np.ndarray:
    """sum_x p(x) values(x) over the support, [N, VOCAB] each to [N]; a bet is never negative there."""
    inside = p > 0
    assert (values[inside] >= 0).all()
    return np.asarray(np.where(inside, p * np.where(inside, values, 0.0), 0.0).sum(1))


def bank_means(rows: Rows) -> Means:
    """Likelihood-ratio bets, whole-request bets of one token, and their certificates from their strength on."""
    p = rows.p
    columns = traced(rows, Provenance.RECOVERED)
    unigram = np.random.default_rng(1).dirichlet(np.ones(VOCAB))
    table = {token: float(np.log(mass)) for token, mass in enumerate(unigram)}
    flat = unigram_log_ratio(np.tile(np.arange(VOCAB), len(p)).tolist(), columns["log_prob"].ravel(), table, -50.0)
    ratios = {name: columns["log_ratio"][:, :, at] for at, name in enumerate(ALTERNATIVES)} | {"unigram": flat.reshape(p.shape)}
    for name, ratio in ratios.items():
        bets = log_bets(ratio)  # [N, VOCAB, strengths]
        for at, lam in enumerate(LAMBDAS):
            yield f"bank {name}@{lam:g}", mean(p, np.exp(bets[:, :, at]))
        for lam in BURST_LAMBDAS:
            bursts = np.exp(log_burst(bets[:, :, LAMBDAS.index(lam)]))
            for at in range(bursts.shape[-1]):
                yield f"burst {name}@{lam:g}/{at}", mean(p, bursts[:, :, at])
        a = p * np.exp(ratio)  # what the alternative leaves on the target's support
        for lam in (0.05, 0.3, MAX_STRENGTH):
            certificate = np.exp(log_certificate(ratio, lam))
            for share in (lam, (1 + lam) / 2, 1.0):
                yield f"certificate {name}@{lam:g} at {share:g}", mean((1 - share) * p + share * a, certificate)
        for share in (0.01, 0.05):
            yield f"request {name}/{share:g}", mean((1 - share) * p + share * a, np.exp(log_request_certificate(ratio, share)))


def pit_means(rows: Rows) -> Means:
    """PIT bets in both orders, and PIT certificates under a witness that is shifted by the margin."""
    every = [traced(rows, Provenance.RECOVERED, float(v)) for v in V]
    for order in ("pit_id", "pit_ratio"):
        u = np.stack([columns[order] for columns in every], 2)  # [N, VOCAB, nodes]
        bets = np.einsum("nx,v,nxvtsj->ntsj", rows.p, V_WEIGHTS, np.exp(log_pit_bets(u)))
        yield f"{order} above", bets.reshape(len(u), -1).max(1)
        yield f"{order} below", 2 - bets.reshape(len(u), -1).min(1)  # means are exactly 1
        witness = legendre(u)
        for j in DEGREES:
            for sign in (1, -1):
                # The mean of the witness is 0 here; a truth that mixes in its best token and node to lift it to 2m is the null.
                f = sign * witness[..., j - 1]
                real = np.where(rows.p[:, :, None] > 0, f, -np.inf)
                best = real.max((1, 2))
                share = np.where(best > 0, 0.02 / np.where(best > 0, best, 1.0), np.inf)
                inside = share <= 1
                values = np.exp(log_pit_certificate(f, 0.01, j))
                even = np.einsum("nx,v,nxv->n", rows.p, V_WEIGHTS, values)
                top = np.exp(log_pit_certificate(np.where(inside, best, 0.02), 0.01, j))
                yield f"certificate {order} {sign:+d}L{j}", np.where(inside, (1 - share) * even + share * top, 0.0)


def draft_means(rows: Rows) -> Means:
    """Bets on the verdict, on its uniform and on the draft itself, over every draft."""
    p, q = rows.p, rows.q
    columns = traced(rows, Provenance.ACCEPTED)
    threshold = columns["accept_threshold"]
    if rows.kind is DrafterKind.DENSE:
        with np.errstate(divide="ignore", invalid="ignore"):
            chance = np.where(q > 0, np.minimum(p / q, 1.0), 0.0)  # of being accepted, [N, drafts]
    else:
        chance = p
    yield "threshold", 1 + np.abs(threshold - chance).max(1)
    deviations = [components.deviations(np.full(p.size, flag), threshold.ravel()) for flag in (True, False)]
    taken, refused = ((components.accept_bets(d), components.certain_bets(d[:, 1])) for d in deviations)
    certain = threshold.ravel() >= components.CERTAIN
    for name, (yes, no), where in zip(
        ("acc", "acc certain"), zip(taken, refused, strict=True), (np.ones(p.size, bool), certain), strict=True
    ):
        both = chance.ravel()[:, None] * yes + (1 - chance.ravel()[:, None]) * no
        yield name, np.where(where[:, None], both, 0.0).max(1)
    before = columns["draft_mid"] if rows.kind is DrafterKind.DENSE else np.full(p.shape, 0.9)
    ties = np.stack(
        [components.tie_bets(components.ties(np.full(p.size, v), [before.ravel()]))[:, 0] for v in V]
    )  # [nodes, N * VOCAB, thetas]
    yield "acc_uniform tied", np.tensordot(V_WEIGHTS, ties, 1).max(1)
    yield "acc_uniform", V_WEIGHTS @ components.pit_bets(legendre(V))
    if rows.kind is DrafterKind.DENSE:
        u = np.stack([traced(rows, Provenance.ACCEPTED, float(v))["draft_pit"] for v in V], 2)
        bets = components.pit_bets(legendre(u))
        means = np.einsum("nx,v,nxvb->nb", q, V_WEIGHTS, bets)
        yield "draft_pit above", means.max(1)
        yield "draft_pit below", 2 - means.min(1)


def next_token_means(rows: Rows) -> Means:
    """Bets on recovered tokens where the draft can be rejected, and on bonus tokens."""
    p, q = rows.target.numpy(), rows.q  # as the verifier subtracts them, to the last bit
    left = np.where(q > 0, 0.0, p) if rows.kind is DrafterKind.ONE_HOT else np.maximum(p - q, 0.0)
    rejectable = left.sum(1) > 0
    residual = left / np.where(rejectable, left.sum(1), 1.0)[:, None]
    every = [traced(rows, Provenance.RECOVERED, float(v)) for v in V]
    ratios = every[0]["residual_log_ratio"]
    for at, name in enumerate(TILTS):
        for lam_at, lam in enumerate(LAMBDAS):
            yield f"res {name}@{lam:g}", mean(residual, np.exp(log_bets(ratios[:, :, at])[:, :, lam_at]))
    u = np.stack([columns["residual_pit"] for columns in every], 2)
    means = np.einsum("nx,v,nxvb->nb", residual, V_WEIGHTS, components.pit_bets(legendre(u)))
    yield "res_pit above", np.where(rejectable, means.max(1), 1.0)
    yield "res_pit below", np.where(rejectable, 2 - means.min(1), 1.0)
    # A token that an exact engine can recover with any probability worth the name is never called impossible.
    excluded = impossible(every[0]["log_ratio"][:, :, ALTERNATIVES.index("draft")], rows.kind)
    yield "resv", 1 + mean(residual, (excluded & (left > EXACT)).astype(float))


def every_mean(rows: Rows) -> Means:
    """All of the above."""
    for means in (bank_means, pit_means, draft_means, next_token_means):
        yield from means(rows)


def worst(rows: Rows) -> dict[str, float]:
    """The largest mean of every bet over all rows."""
    found: dict[str, float] = {}
    for name, means in every_mean(rows):
        found[name] = max(found.get(name, 0.0), float(np.max(means)))
    return found
