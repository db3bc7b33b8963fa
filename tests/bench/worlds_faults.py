"""The faults of the power tables as small functions over the shipped `verify` and `draw`.

Where the shipped fault library has a fault it is used by name; what is here needs the insides of a simulated engine (the rows of
the draft model at a bonus position, the noise that a draft was drawn with), or a strength that only the tables ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from canary.engine.sampling import Draw, Drawn, draw
from canary.engine.verify import Verified, Verify, verify
from tests.bench.worlds import BenchWorld, Inject, Round, context_after, shipped

Wrapped = Callable[[Round, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Verified]


@dataclass(frozen=True)
class Fault:
    """One row of the tables.

    Args:
        title: for people.
        group: the catalogue's; "A" faults leave greedy text as it is.
    """

    name: str
    title: str
    inject: Inject
    group: str = "A"


def _judging(function: Wrapped) -> Inject:
    """A fault of the verifier."""

    def inject(here: Round) -> tuple[Verify, Draw]:
        def wrapped(
            target_probs: Tensor,
            draft_tokens: Tensor,
            draft_len: Tensor,
            draft_probs: Tensor | None,
            accept_uniforms: Tensor,
            next_uniforms: Tensor,
        ) -> Verified:
            if draft_probs is None:
                raise ValueError("these faults are written for dense drafts")
            return function(here, target_probs, draft_tokens, draft_len, draft_probs, accept_uniforms, next_uniforms)

        return wrapped, draw

    return inject


def _judged(target: Tensor, drafts: Tensor) -> Tensor:
    """p(d) of every draft: [B, k]."""
    return target[:, :-1].gather(-1, drafts[..., None])[..., 0]


def _typical(threshold: float) -> Inject:
    """Accept unjudged what the target finds likelier than the threshold."""

    def wrapped(here: Round, p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
        return verify(p, d, n, q, torch.where(_judged(p, d) > threshold, 0.0, u), v)

    return _judging(wrapped)


def _rejected(found: Verified, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(batch index, column of the judged draft, where one was rejected)."""
    at = found.num_accepted.clamp_max(int(lengths.max()) - 1)
    return torch.arange(len(lengths)), at, found.num_accepted < lengths


def _instead(found: Verified, where: Tensor, tokens: Tensor) -> Verified:
    return found._replace(next_token=torch.where(where, tokens, found.next_token))


def _residual(p: Tensor, q: Tensor, batch: Tensor, at: Tensor) -> Tensor:
    return (p[batch, at] - q[batch, at]).clamp_min(0.0)  # [B, V]


def _residual_unfiltered(here: Round, p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
    found = verify(p, d, n, q, u, v)
    batch, at, rejected = _rejected(found, n)
    raw = here.world.target if here.world.unfiltered is None else here.world.unfiltered
    row = (raw[here.contexts[batch, at]] - q[batch, at]).clamp_min(0.0)
    return _instead(found, rejected, draw(row, v[batch, at]).tokens)


def _bonus(table: Callable[[BenchWorld], Tensor]) -> Inject:
    """The bonus token is drawn from another row.

    Args:
        table: [CONTEXTS, VOCAB] those rows.
    """

    def inject(here: Round) -> tuple[Verify, Draw]:
        rows = table(here.world)

        def judge(here: Round, p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
            found = verify(p, d, n, q, u, v)
            return _instead(found, found.num_accepted == n, draw(rows[here.contexts[:, -1]], v[:, -1]).tokens)

        return _judging(judge)(here)

    return inject


def _bonus_too_hot(world: BenchWorld) -> Tensor:
    asked = world.params.temperature
    return world.target_at(1.2 if asked in (0.0, 1.0) else 1 / asked)


def _shared_noise(here: Round) -> tuple[Verify, Draw]:
    """Exponential races: the draft and the token after a rejection are the argmax of row / noise with the same noise."""

    def race(probs: Tensor, uniforms: Tensor) -> Drawn:
        noise = torch.empty(probs.shape).exponential_(generator=here.generator)
        here.noise.append(noise)
        return Drawn((probs / noise).argmax(1), probs)

    def judge(here: Round, p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
        found = verify(p, d, n, q, u, v)
        batch, at, rejected = _rejected(found, n)
        noise = torch.stack(here.noise, 1)[batch, at]
        return _instead(found, rejected, (_residual(p, q, batch, at) / noise).argmax(1))

    return _judging(judge)(here)[0], race


def _accept_with_draft_uniform(here: Round) -> tuple[Verify, Draw]:
    """The number that drew a draft also judges it; as the engine's own, it is what the trace records."""

    def keep(probs: Tensor, uniforms: Tensor) -> Drawn:
        here.uniforms.append(uniforms)
        return draw(probs, uniforms)

    judge = _judging(lambda here, p, d, n, q, u, v: verify(p, d, n, q, u.copy_(torch.stack(here.uniforms, 1)), v))
    return judge(here)[0], keep


def _seed_reset(here: Round) -> tuple[Verify, Draw]:
    """Every request starts the same stream of random numbers: in its r-th round it draws what all others drew in theirs.

    The trace records the numbers that were used, as in an engine whose generator is at fault.
    """

    def stream(width: int, what: int) -> Tensor:
        generator = torch.Generator().manual_seed(1_000 * here.number + what)
        return torch.rand(1, width, generator=generator, dtype=torch.float64)

    def again(probs: Tensor, uniforms: Tensor) -> Drawn:
        here.uniforms.append(uniforms)
        return draw(probs, stream(1, len(here.uniforms))[0].expand_as(uniforms))

    judge = _judging(
        lambda here, p, d, n, q, u, v: verify(
            p, d, n, q, u.copy_(stream(u.shape[1], 100).expand_as(u)), stream(v.shape[1], 200).expand_as(v)
        )
    )
    return judge(here)[0], again


def _late(here: Round, hit: Tensor, p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
    """Where hit ([B] bool), every position is judged by, and drawn from, the row before its own."""
    before = here.carry.get("context", here.contexts[:, 0])
    late = torch.cat([here.world.target[before][:, None], p[:, :-1]], 1)
    found = verify(torch.where(hit[:, None, None], late, p), d, n, q, u, v)
    here.close(found, context=here.contexts.gather(1, found.num_accepted[:, None])[:, 0])
    return found


def _late_rounds(share: float) -> Inject:
    return _judging(lambda here, *given: _late(here, torch.rand(len(given[0]), generator=here.generator) < share, *given))


def _late_requests(share: float) -> Inject:
    return _judging(lambda here, *given: _late(here, _chosen(here, share), *given))


def _chosen(here: Round, share: float) -> Tensor:
    """A share of the requests, chosen by their prompts: [B] bool."""
    return here.prompts % 10_000 < share * 10_000


def _stale_cache(share: float) -> Inject:
    """After a share of the rejections the rejected draft stays visible for as long as the model looks back."""

    def wrapped(here: Round, p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
        seen = here.carry.get("seen", here.last)  # [B, 2] what the model believes it has written
        following = context_after(here.prompts, torch.stack([seen[:, 1], d[:, 0]], 1))
        wrong = here.world.target[torch.stack([context_after(here.prompts, seen), following], 1)]  # [B, 2, V]
        found = verify(torch.cat([wrong, p[:, 2:]], 1), d, n, q, u, v)
        batch, at, rejected = _rejected(found, n)
        hit = rejected & (torch.rand(len(p), generator=here.generator) < share)
        written = torch.cat([here.last, d, d[:, :1]], 1).scatter(1, found.num_accepted[:, None] + 2, found.next_token[:, None])
        end = found.num_accepted[:, None] + 2
        newest = torch.where(hit, d[batch, at], found.next_token)
        here.close(found, seen=torch.stack([written.gather(1, end - 1)[:, 0], newest], 1))
        return found

    return _judging(wrapped)


def _contaminated(share: float) -> Inject:
    """At drafted positions a share of the mass is the draft's."""

    def wrapped(here: Round, p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
        mixed = torch.cat([(1 - share) * p[:, :-1] + share * q, p[:, -1:]], 1)
        return verify(mixed, d, n, q, u, v)

    return _judging(wrapped)


def _whole_requests(share: float) -> Inject:
    """A share of the requests is answered by the draft model alone."""

    def wrapped(here: Round, p: Tensor, d: Tensor, n: Tensor, q: Tensor, u: Tensor, v: Tensor) -> Verified:
        hit = _chosen(here, share)
        found = verify(p, d, n, q, u, v)
        bonus = draw(here.world.draft[here.contexts[:, -1]], v[:, -1]).tokens
        return found._replace(
            num_accepted=torch.where(hit, n, found.num_accepted), next_token=torch.where(hit, bonus, found.next_token)
        )

    return _judging(wrapped)


_ALL = (
    Fault("resample_from_target", "wrong residual: re-sampled from the target", shipped("resample_from_target")),
    Fault("residual_argmax", "residual argmax", shipped("residual_argmax")),
    Fault("greedy_draft_softmax_q", "draft argmax, softmax reported", shipped("greedy_draft_softmax_q")),
    Fault("top5_draft_raw_q", "draft top-k 5, raw row reported", shipped("top_k_draft_raw_q")),
    Fault("draft_temperature", "draft temperature x1.25 unseen", shipped("hot_draft")),
    Fault("draft_temperature_half", "draft at temperature x.5, reported at x1", shipped("cold_draft")),
    Fault("typical_0.1", "typical acceptance, threshold .1", shipped("lenient_acceptance")),
    Fault("typical_0.3", "typical acceptance, threshold .3", _typical(0.3)),
    Fault("bonus_from_draft", "bonus token from the draft", _bonus(lambda world: world.draft)),
    Fault("bonus_temperature", "bonus token too hot (x1.2; at 1 where .7 is asked for)", _bonus(_bonus_too_hot)),
    Fault("uniform_zero", "acceptance uniform stuck at 0", shipped("uniform_zero")),
    Fault("accept_argmax", "accept iff the argmax", shipped("accept_iff_argmax")),
    Fault("accept_if_equal", "accept if equal, re-sample from the target", shipped("accept_if_equal")),
    Fault("acceptance_1.1", "acceptance scaled by 1.1", shipped("generous_acceptance")),
    Fault("shared_noise", "noise shared between draft and recovery", _shared_noise),
    Fault("seed_reset", "seed reset at every request", _seed_reset, "F"),
    Fault("uniform_reused_residual", "acceptance uniform reused for the residual", shipped("accept_uniform_reused"), "F"),
    Fault("uniform_reused_accept", "draft uniform reused for acceptance", _accept_with_draft_uniform, "F"),
    Fault("off_by_one_2pct", "rows off by one in 2 % of rounds", _late_rounds(0.02), "G"),
    Fault("stale_cache_10pct", "rejected draft left visible, 10 % of rejections", _stale_cache(0.10), "G"),
    Fault("residual_unfiltered", "residual from the unfiltered row", _judging(_residual_unfiltered), "B"),
    Fault("tokens_from_draft_10pct", "10 % of the mass is the draft's", _contaminated(0.10)),
    Fault("tokens_from_draft_3pct", "3 % of the mass is the draft's", _contaminated(0.03)),
    Fault("requests_from_draft_1pct", "1 % of requests from the draft", _whole_requests(0.01), "G"),
    Fault("requests_off_by_one_1pct", "1 % of requests off by one row", _late_requests(0.01), "G"),
)
FAULTS = {fault.name: fault for fault in _ALL}
