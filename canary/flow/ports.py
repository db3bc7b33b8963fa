"""What the walk needs from the world, as small Protocols that adapters meet by shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from canary.domain.mirrored import MirrorCount
from canary.domain.observations import Observation
from canary.domain.pairs import Arm, DrafterKind, Generation, Pair, Timing
from canary.domain.rollout import Rollout
from canary.domain.traffic import Prompt, SamplingParams, Stratum
from canary.flow.access_ports import AnswerStore as AnswerStore
from canary.flow.access_ports import AuditStore as AuditStore
from canary.flow.access_ports import KeptAnswer as KeptAnswer
from canary.flow.access_ports import KeyStore as KeyStore
from canary.flow.job_ports import JobStore as JobStore
from canary.flow.job_ports import LeaderStore as LeaderStore
from canary.flow.job_ports import NoticeStore as NoticeStore
from canary.flow.job_ports import ShadowRunStore as ShadowRunStore
from canary.flow.rollout_ports import FlagStore as FlagStore
from canary.flow.rollout_ports import KillStore as KillStore
from canary.flow.rollout_ports import PinStore as PinStore
from canary.flow.rollout_ports import PolicyStore as PolicyStore
from canary.flow.rollout_ports import Proposal as Proposal
from canary.flow.rollout_ports import ProposalStore as ProposalStore
from canary.flow.rollout_ports import RolloutStore as RolloutStore


@dataclass(frozen=True, slots=True)
class Claim:
    """One prompt under a lease.

    Args:
        ordinal: dense position in (route, epoch, attempt), the same on every retry.
        tries: leases that were given before this one and ran out.
        token: proves that the lease is still ours when the pair is stored.
        control: the pair is an A/A pair (`domain.pairs.Pair`); chosen once, with the ordinal.
    """

    pair_id: str
    route: str
    epoch: str
    attempt: int
    ordinal: int
    tries: int
    token: str
    prompt: Prompt
    control: bool = False


@dataclass(frozen=True, slots=True)
class FoldItem:
    """One ordinal, ready to be folded; `increments` is None for a tombstone or a pair set aside.

    Args:
        control: whether it belongs to the A/A arm's state, tombstones too.
        stratum, length: of its prompt (`domain.mirrored`); None for a claim from before they were kept.
    """

    ordinal: int
    increments: bytes | None
    calibration_hash: str
    stored_at: float
    control: bool = False
    stratum: Stratum | None = None
    length: int | None = None


@dataclass(frozen=True, slots=True)
class ArmRequest:
    """One request as an arm runs it.

    Args:
        key: 16 bytes; every draw of the arm is keyed by (key, stream, position).
        control: of an A/A pair, so that the candidate's arm runs k = 0 at the control batch size.
    """

    prompt: Prompt
    params: SamplingParams
    key: bytes
    control: bool = False


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine says about itself.

    Args:
        fingerprint: hash of everything that could change its outputs (DESIGN section 3, *epoch*).
        exact_rows: True where rows are exact enough for the absolute bound (fp32).
        described: the parts of the fingerprint, for people.
        verify_costs: milliseconds of one target step, by `BATCHxWIDTH`, as probed when the target was loaded.
        memory: bytes of `target` and `drafter`, of their caches with every row at its full context (`target_cache`,
            `drafter_cache`), and of the device (`total`); empty where an engine cannot say.
        constrains: whether answers are held to a request's `response_format` and `tools` by a grammar. Where not, both arms write
            what they like, and validity compares them on the same terms.
        left_out: of `tools` and `tool_calls`, what the target's chat template leaves out of a prompt without saying so.
    """

    fingerprint: str
    drafter_kind: DrafterKind
    num_speculative_tokens: int
    exact_rows: bool
    vocab_size: int
    described: Mapping[str, str]
    verify_costs: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    constrains: bool = False
    left_out: tuple[str, ...] = ()


class ShadowEngine(Protocol):
    """An engine that can run both arms of a route.

    Attributes:
        calibrating: set by the walk; traces carry the distances of the alternatives then.
    """

    info: EngineInfo
    calibrating: bool

    def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> Sequence[Generation]:
        """Run one arm of a batch, traced and scored; a request that cannot run comes back with its `error`.

        Either all of the requests are of A/A pairs or none is. There the candidate's arm is traced and scored as ever.
        """

    def time_block(self, requests: Sequence[ArmRequest], arm: Arm) -> Timing:
        """Run one arm of a block untraced, all of its requests together and nothing beside them, for one timing of the whole.

        Either all of the requests are of A/A pairs or none is.
        """


ControlRule = Callable[[int, str], bool]  # ordinal and pair id -> whether it is an A/A pair


def no_controls(ordinal: int, pair: str) -> bool:
    """The rule of a policy without an A/A arm."""
    return False


class PromptStore(Protocol):
    def add_many(self, prompts: Sequence[Prompt], now: float) -> list[bool]:
        """Insert what is new by (source, request id); True where it was new."""

    def count(self, route: str) -> int: ...

    def since(self, route: str, at: float, most: int) -> int:
        """How many of the route's prompts arrived at or after a moment, counted up to `most`."""

    def recent(self, route: str, limit: int) -> list[Prompt]:
        """The route's newest prompts whose content is still kept, in order of arrival."""

    def of_pair(self, pair_id: str) -> Prompt | None:
        """What both arms of a pair answered; None where its content is no longer kept."""


class MirroredStore(Protocol):
    def add(self, counts: Sequence[MirrorCount]) -> None:
        """Add to the counts of their kinds, each kind at most once in `counts`."""

    def get(self, route: str, rate: float) -> list[MirrorCount]:
        """The route's counts under one mirror rate, by kind in a fixed order; kinds that were never seen are missing."""


class ClaimStore(Protocol):
    def claim(
        self,
        rollout: Rollout,
        *,
        limit: int,
        before_ordinal: int | None,
        worker: str,
        now: float,
        lease_seconds: float,
        max_retries: int,
        control: ControlRule = no_controls,
    ) -> list[Claim]:
        """Lease pairs of the rollout's attempt, under the rollout's row lock.

        Expired leases come first, with their old ordinals; those past `max_retries` become failed tombstones instead. Then
        unclaimed prompts get the next ordinals, in order of arrival, below `before_ordinal` (None: no bound). `control` says
        which of them are A/A pairs, and they stay so on every retry.
        """

    def heartbeat(self, tokens: Sequence[str], now: float, lease_seconds: float) -> int:
        """Extend the leases that are still ours; returns how many those are (0: the whole batch is lost)."""

    def release(self, tokens: Sequence[str]) -> None:
        """Give leases back at once (Ctrl-C); their ordinals stay theirs and no retry is counted."""

    def expire_all(self) -> int:
        """End every lease now; for an owner who knows that no worker is left."""

    def finish(self, claim: Claim, *, failed: bool) -> bool:
        """Mark the claim paired or failed; False if the lease was lost meanwhile."""

    def given(self, route: str, epoch: str, attempt: int) -> int:
        """Ordinals that the attempt has given so far, which is also the next one."""

    def open_count(self, route: str, epoch: str, attempt: int) -> int:
        """Claims that are neither paired nor failed."""


class PairStore(Protocol):
    def add(self, pair: Pair, now: float) -> None: ...

    def get(self, pair_id: str) -> Pair | None: ...

    def first(self, route: str, epoch: str, attempt: int, count: int) -> list[Pair | None] | None:
        """The first `count` ordinals (None for a tombstone), or None while any of them is open."""

    def page(self, route: str, epoch: str, attempt: int, *, after: int, limit: int) -> list[Pair]:
        """Stored pairs beyond an ordinal, in order; -1 for the first."""

    def contiguous(self, route: str, epoch: str, attempt: int, *, after: int, limit: int) -> list[FoldItem]:
        """Finished ordinals from `after` on, up to the first gap, in order."""

    def ids(self, route: str, epoch: str, attempt: int) -> list[str]:
        """Pair ids in ordinal order."""


class EvidenceStore(Protocol):
    def get(self, route: str, epoch: str, attempt: int) -> dict[str, object] | None:
        """The folded state, as `stats` wrote it."""

    def put(self, route: str, epoch: str, attempt: int, state: Mapping[str, object]) -> None: ...

    def attempts(self, route: str, epoch: str) -> list[int]:
        """The epoch's attempts that have a folded state, rising."""

    def get_calibration(self, route: str, epoch: str, attempt: int) -> dict[str, object] | None: ...

    def put_calibration(self, route: str, epoch: str, attempt: int, record: Mapping[str, object]) -> None:
        """Freeze the attempt's calibration; a second, different record is refused (ConflictError)."""


class ObservationStore(Protocol):
    def add_many(self, observations: Sequence[Observation], now: float) -> list[bool]:
        """Insert what is new by (route, observation id); True where it was new."""

    def after(self, route: str, cursor: int, limit: int) -> list[tuple[int, Observation]]:
        """The route's observations beyond a place, in order of arrival, each with its own place.

        Nothing ever becomes visible at or before a place that was returned, so a cursor misses nothing.
        """

    def newest(self, route: str) -> int:
        """Place of the route's newest observation, 0 without one."""

    def get(self, route: str, observation_id: str) -> Observation | None:
        """One observation by its id."""


class Transaction(Protocol):
    """One unit of work; leaving it without `commit` rolls back."""

    prompts: PromptStore
    mirrored: MirroredStore
    claims: ClaimStore
    pairs: PairStore
    observations: ObservationStore
    evidence: EvidenceStore
    rollouts: RolloutStore
    flags: FlagStore
    pins: PinStore
    kills: KillStore
    policies: PolicyStore
    proposals: ProposalStore
    audit: AuditStore
    keys: KeyStore
    answers: AnswerStore
    notices: NoticeStore
    jobs: JobStore
    shadow_runs: ShadowRunStore
    leaders: LeaderStore

    def commit(self) -> None: ...


class Store(Protocol):
    def transaction(self) -> AbstractContextManager[Transaction]: ...


class Observer(Protocol):
    """Counts and notes; never decides anything."""

    def note(self, event: str, **facts: object) -> None: ...
