"""A loop outlives whatever its step raises, wakes when it is told to, and ends when it is closed."""

from __future__ import annotations

import threading

from canary.flow.loop import FAILED_SECONDS, Loop
from tests.api.served import Notes

LONG = 3_600.0


class Steps:
    """A step that waits to be allowed, and fails when it is told to."""

    def __init__(self) -> None:
        self.allowed, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.fail = False
        self.count = 0

    def __call__(self) -> float:
        self.allowed.acquire()
        self.count += 1
        self.done.release()
        if self.fail:
            raise RuntimeError("a row with a prompt")
        return LONG

    def once(self) -> None:
        self.allowed.release()
        self.done.acquire()


def test_it_wakes_survives_errors_and_ends() -> None:
    steps, notes = Steps(), Notes()
    loop = Loop("canary-test", steps, notes)
    loop.start()
    loop.start()
    steps.once()
    for fail in (True, True, False, True):
        steps.fail = fail
        loop.wake()
        steps.once()
    steps.allowed.release()
    loop.close()
    loop.close()
    assert [t for t in threading.enumerate() if t.name == "canary-test"] == []
    assert notes.seen == [("loop_failed", {"loop": "canary-test", "error": "RuntimeError"})] * 2, "once per outage"
    assert 0 < FAILED_SECONDS < LONG


def test_it_begins_again_after_its_end_and_may_close_itself() -> None:
    ran: list[int] = []
    ended = threading.Event()

    def step() -> float:
        ran.append(1)
        loop.close()
        ended.set()
        return LONG

    loop = Loop("canary-test", step, Notes())
    for count in (1, 2):
        ended.clear()
        loop.start()
        ended.wait()
        assert len(ran) == count
