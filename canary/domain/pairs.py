"""What an engine hands back for one request: tokens, counts, trace and timings of both arms.

Numbers that only statistics read are packed little-endian columns; this module names them and never interprets them.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from operator import gt

from canary.domain.errors import IdentityError
from canary.domain.traffic import Stratum


class Arm(StrEnum):
    """The two halves of a pair."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


class Provenance(IntEnum):
    """Where an emitted token came from."""

    PLAIN = 0  # nothing was drafted at its position and no round was fully accepted before it
    ACCEPTED = 1
    RECOVERED = 2
    BONUS = 3


class DrafterKind(StrEnum):
    """What the drafter reports beside its tokens."""

    ONE_HOT = "one_hot"
    DENSE = "dense"


class Scheme(StrEnum):
    """How drafts are judged; what single draws of a round must look like depends on it."""

    TOKEN = "token"  # token rejection: accept below min(1, p/q), else draw from norm(max(p - q, 0))
    GREEDY = "greedy"  # accept the argmax
    BLOCK = "block"  # the drafts of a round are judged together
    EXACT_MATCH = "exact_match"  # draw from the target, accept what equals the draft
    TREE = "tree"  # several drafts compete for a position


# Alternatives of the likelihood-ratio bank that the engine's trace evaluates (statistics 3.1, 0b.6).
# The route unigram needs the calibration record, so it is computed from `log_prob` later.
ALTERNATIVES = (
    "draft",
    "residual",
    "over_rejection",
    "typical",
    "shared_noise",
    "cold",
    "hot",
    "argmax",
    "unfiltered",
    "shift",
)

# How a residual may be tilted: by the root of the draft row, by that of the target row or its inverse, by noise shared with the
# draft, or with all its mass on its mode (statistics 3.4, RES).
TILTS = ("draft_up", "target_up", "target_down", "shared_noise", "argmax")

# column -> (numpy little-endian type, values per emitted token)
TRACE_COLUMNS: Mapping[str, tuple[str, int]] = {
    "position_in_round": ("<i2", 1),  # 0 = first position of the round
    "provenance": ("|u1", 1),  # Provenance
    "drafted": ("|u1", 1),  # 1 where a draft token was judged at this position
    "log_prob": ("<f4", 1),  # log p(x), processed target row
    "max_prob": ("<f4", 1),  # largest entry of the processed target row
    "log_ratio": ("<f4", len(ALTERNATIVES)),  # log a_k(x)/p(x); 0 where inert
    "tv": ("<f4", len(ALTERNATIVES)),  # TV(p, a_k) of the row; 0 where inert
    "pit_id": ("<f4", 1),  # randomised PIT, tokens ordered by id
    "pit_ratio": ("<f4", 1),  # randomised PIT, tokens ordered by q/p, ties by id
    "pit_mid": ("<f4", 1),  # F(x-) + p(x)/2, by id
    "accept_threshold": ("<f4", 1),  # min(1, p/q) of the judged draft token (block: min(1, w p/q)), from the rows; nan if none
    "accept_uniform": ("<f4", 1),  # the uniform it was judged with; nan where none
    "draft_pit": ("<f4", 1),  # randomised PIT of the judged draft in its own row, likeliest first; nan where none or one-hot
    "draft_mid": ("<f4", 1),  # F(d-) + q(d)/2 of the judged draft, by id; nan where none or one-hot
    "residual_log_ratio": ("<f4", len(TILTS)),  # log a(x)/res(x) of a recovered token; 0 where inert or not recovered
    "residual_pit": ("<f4", 1),  # randomised PIT of a recovered token in the residual, by id; nan where not recovered
    "bonus_log_ratio": ("<f4", 1),  # log q(x)/p(x) of a bonus token under the round's last draft row; 0 elsewhere
}

# Beside those where the drafts of a round are judged together; what is of a whole round stands at its first position.
BLOCK_COLUMNS: Mapping[str, tuple[str, int]] = {
    "block_weight": ("<f4", 1),  # min(1, product of p/q) of the round's drafts before; 1 at a first position
    "block_pit": ("<f4", 1),  # randomised PIT of how many drafts were accepted, given them all; nan off first positions
    "block_accepted": ("<i2", 1),  # how many that was, before any cut; -1 off first positions
    "block_rule": ("<i2", 1),  # how many the rows' thresholds accept at the recorded uniforms; -1 off first positions
}

# Compared with the reference model's own rows by `score`.
ROW_COLUMNS: Mapping[str, tuple[str, int]] = {
    "row_tv": ("<f4", 1),  # TV(engine row, reference row)
    "logit_gap": ("<f4", 1),  # reference: largest logit - logit of the emitted token
    "temperature": ("<f4", 1),  # at which the two rows were compared; greedy: 1
    "replay_tv": ("<f4", 1),  # TV(engine row, row of k = 0 on the same text); only where the answer was replayed
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Packed per-token columns of one generation.

    Args:
        num_tokens: how many tokens every column describes.
        data: column name -> little-endian bytes.
    """

    num_tokens: int
    data: Mapping[str, bytes]

    VERSION = 1

    def to_bytes(self) -> bytes:
        """One self-describing block: length of the head, head as JSON, columns in its order."""
        head = json.dumps(
            {"v": self.VERSION, "n": self.num_tokens, "columns": {k: len(v) for k, v in self.data.items()}}
        ).encode()
        return struct.pack("<I", len(head)) + head + b"".join(self.data.values())

    @classmethod
    def from_bytes(cls, block: bytes) -> Columns:
        """The inverse of `to_bytes`."""
        (size,) = struct.unpack_from("<I", block)
        head = json.loads(block[4 : 4 + size])
        if head["v"] != cls.VERSION:
            raise ValueError(f"columns version {head['v']} is not {cls.VERSION}")
        at, data = 4 + size, {}
        for name, length in head["columns"].items():
            data[name] = block[at : at + length]
            at += length
        return cls(head["n"], data)


@dataclass(frozen=True, slots=True)
class DecodeStats:
    """What happened in the steps of one generation; rates are derived, counts are stored.

    Args:
        num_speculative_tokens: k asked for; 0 is the baseline.
        drafted: draft tokens judged in each step (the prefill is step 0 and drafts nothing).
        accepted: accepted draft tokens in each step.
        num_cut: tokens verified and then cut by a stop string, EOS or the length limit.
    """

    num_speculative_tokens: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    num_cut: int = 0

    @property
    def num_steps(self) -> int:
        return len(self.drafted)

    @property
    def num_drafts(self) -> int:
        return sum(d > 0 for d in self.drafted)

    @property
    def num_draft_tokens(self) -> int:
        return sum(self.drafted)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(self.accepted)

    @property
    def acceptance_rate(self) -> float | None:
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_accepted_tokens(self) -> float | None:
        return self.num_accepted_tokens / self.num_drafts if self.num_drafts else None

    @property
    def accepted_per_position(self) -> tuple[int, ...]:
        steps = Counter(self.accepted)  # how many steps accepted exactly so many
        return tuple(sum(n for a, n in steps.items() if a > i) for i in range(self.num_speculative_tokens))

    def check(self, num_tokens: int) -> None:
        """Assert the accounting identities of one generation.

        Args:
            num_tokens: how many tokens were emitted.

        Raises:
            IdentityError: a step accepted more than it drafted or drafted more than k, or the emitted tokens are not accepted
                plus one per step minus cut.
        """
        if len(self.drafted) != len(self.accepted):
            raise IdentityError(f"{len(self.drafted)} drafted steps but {len(self.accepted)} accepted steps")
        k = self.num_speculative_tokens
        if any(map(gt, self.accepted, self.drafted)) or max(self.drafted, default=0) > k or min(self.accepted, default=0) < 0:
            steps = enumerate(zip(self.drafted, self.accepted, strict=True))
            step, (d, a) = next((at, both) for at, both in steps if not 0 <= both[1] <= both[0] <= k)
            raise IdentityError(f"step {step} accepted {a} of {d} drafted with k={k}")
        expected = self.num_accepted_tokens + self.num_steps - self.num_cut
        if num_tokens != expected:
            raise IdentityError(f"{num_tokens} tokens emitted, but accepted + steps - cut = {expected}")


@dataclass(frozen=True, slots=True)
class Generation:
    """One arm's answer.

    Args:
        token_ids: emitted tokens, up to and including EOS or the token that completed a stop string.
        text: what the client would have seen.
        finish_reason: `stop`, `length` or `error`.
        error: why the arm failed, None if it did not.
        trace: `TRACE_COLUMNS` of the candidate arm (None: not traced).
        rows: `ROW_COLUMNS` against the reference model (None: not scored).
        request_digest: of the prompt's tokens and the sampling parameters that the arm ran; "" where the engine gives none.
        valid: on a structured route, whether the answer holds what the route promises; None elsewhere, or where it was cut.
        agrees: of the candidate, whether its answer holds the same JSON value as the baseline's; None unless both are valid.
    """

    arm: Arm
    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    stats: DecodeStats
    error: str | None = None
    trace: Columns | None = None
    rows: Columns | None = None
    request_digest: str = ""
    valid: bool | None = None
    agrees: bool | None = None


@dataclass(frozen=True, slots=True)
class Timing:
    """One untraced pass of one arm, over one request or over a block of requests that start together.

    Args:
        ttft_seconds: from the start until every request of the block has its first token.
        total_seconds: from the start until the block's last token.
        num_tokens: emitted tokens, of the whole block.
        concurrency: requests in the engine together. Of a block the first pair alone carries a timing, of the whole block: one
            observation per block.
    """

    ttft_seconds: float
    total_seconds: float
    num_tokens: int
    concurrency: int = 1

    @property
    def seconds_per_token(self) -> float | None:
        """(seconds - TTFT) / (tokens - 1 per request), since TTFT times the first ones; None where there are no others.

        Source: statistics 0b.7, with one request in the block.
        """
        later = self.num_tokens - self.concurrency
        return (self.total_seconds - self.ttft_seconds) / later if later > 0 else None


@dataclass(frozen=True, slots=True)
class Pair:
    """Both arms of one request: immutable once stored.

    Args:
        pair_id: see `traffic.pair_id`.
        ordinal: dense position within (route, epoch, attempt), given at the claim.
        first: which arm ran first.
        increments: what folding adds (packed float64), computed against the calibration named beside it.
        calibration_hash: "" while the attempt is calibrating.
        error: why the pair enters no statistic, None if it does.
        control: an A/A pair: k = 0 in the candidate's seat too, at the control batch size; it tests the measuring itself.
    """

    pair_id: str
    route: str
    epoch: str
    attempt: int
    ordinal: int
    stratum: Stratum
    first: Arm
    baseline: Generation
    candidate: Generation
    increments: bytes
    calibration_hash: str = ""
    baseline_timing: Timing | None = None
    candidate_timing: Timing | None = None
    error: str | None = None
    control: bool = False
