"""How a policy has its pairs run and timed, and what must hold between those numbers.

It says nothing about margins: those are `policy.Gates`.
"""

from __future__ import annotations

from dataclasses import dataclass

from canary.domain.errors import PolicyError
from canary.domain.load import band_of
from canary.domain.shadow_run import ShadowSchedule


@dataclass(frozen=True, slots=True)
class Shadow:
    """How pairs are run.

    Args:
        batch_size: requests decoded together in the traced pass.
        max_tokens: clamp on new tokens, both arms alike.
        mirror_rate: share of the route's requests that is kept, 0 to 1.
        lease_seconds: how long a worker may hold a pair without a heartbeat.
        max_retries: leases that may expire before the ordinal becomes a tombstone.
        calibration_requests: ordinals that calibrate and enter no certificate.
        control_rate: share of the ordinals that are A/A, the baseline against itself; 0 goes without and says so.
        control_batch_size: most requests together in the candidate's seat of an A/A pair; half of batch_size unless given.
        requests_per_day: most requests that the mirror keeps in a day (UTC); without it as many as the rate lets through.
        schedule: when prompts are run; without it as they come.
        timing_concurrency: requests that are timed together, a block; 1 to batch_size, in the load band of `speed_concurrency`.
    """

    batch_size: int = 8
    max_tokens: int = 256
    mirror_rate: float = 1.0
    lease_seconds: float = 120.0
    max_retries: int = 2
    calibration_requests: int = 20
    control_rate: float = 0.05
    control_batch_size: int | None = None
    timing_concurrency: int = 1
    requests_per_day: int | None = None
    schedule: ShadowSchedule | None = None

    @property
    def control_rows(self) -> int:
        """Most requests that the candidate's seat decodes together in A/A pairs, at least 1."""
        return max(1, self.batch_size // 2) if self.control_batch_size is None else self.control_batch_size


def check_shadow(shadow: Shadow, *, speed_concurrency: int, max_requests: int) -> None:
    """Refuse numbers that contradict each other.

    Args:
        speed_concurrency: of the gates: where speed and TTFT are decided.
        max_requests: of the limits.

    Raises:
        PolicyError: names the field.
    """
    if shadow.schedule is not None:
        shadow.schedule.check()
    given = shadow.control_batch_size
    if given is not None and given >= shadow.batch_size > 1:
        raise PolicyError(
            f"control_batch_size {given} is not below batch_size {shadow.batch_size}",
            where="shadow.control_batch_size",
            remedy="A/A pairs compare the baseline with itself at a smaller batch size.",
        )
    if not 1 <= shadow.timing_concurrency <= shadow.batch_size:
        raise PolicyError(
            f"timing_concurrency {shadow.timing_concurrency} is not between 1 and batch_size {shadow.batch_size}",
            where="shadow.timing_concurrency",
            remedy="A block is timed out of one batch: raise batch_size, or time fewer requests together.",
        )
    timed, decided = band_of(shadow.timing_concurrency), band_of(speed_concurrency)
    if timed != decided:
        raise PolicyError(
            f"speed_concurrency {speed_concurrency} is in load band {decided}, but timing_concurrency "
            f"{shadow.timing_concurrency} is in {timed}, so that speed and TTFT would never have data",
            where="gates.speed_concurrency",
            remedy="Write the same number in gates.speed_concurrency and shadow.timing_concurrency.",
        )
    if shadow.calibration_requests >= max_requests:
        raise PolicyError(
            f"max_requests {max_requests} ends before {shadow.calibration_requests} requests have calibrated",
            where="limits.max_requests",
            remedy="Raise max_requests well above calibration_requests.",
        )
