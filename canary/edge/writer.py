"""The one thread that writes what the listener takes in: it gathers small batches, commits each, then answers.

It never drops what it took: a submitted prompt's future always ends in a state or an error, also at shutdown.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Condition, Thread

from canary.domain.errors import UnreachableError
from canary.domain.traffic import Prompt
from canary.flow.mirrored import Recent
from canary.flow.ports import Store
from canary.flow.walk.mirror import Accepted, accept

BATCH_SIZE = 200
BATCH_SECONDS = 0.02
CAPACITY = 2000

Item = tuple[Prompt, Future[Accepted]]


class Writer:
    """Micro-batches prompts into `accept` on a thread of its own.

    Args:
        capacity: prompts that may wait; more are refused at once.
        batch_size, batch_seconds: a batch closes at whichever comes first.
        clock: seconds since the epoch, for the stored time of arrival.
    """

    def __init__(
        self,
        store: Store,
        *,
        capacity: int = CAPACITY,
        batch_size: int = BATCH_SIZE,
        batch_seconds: float = BATCH_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._capacity = capacity
        self._batch_size = batch_size
        self._batch_seconds = batch_seconds
        self._clock = clock
        self._waiting: deque[Item] = deque()
        self._changed = Condition()
        self._closing = False
        self._thread: Thread | None = None
        self._recent = Recent()

    def start(self) -> None:
        """Start the thread; a second call does nothing."""
        with self._changed:
            if self._thread is None:
                self._closing = False
                self._thread = Thread(target=self._run, name="canary-mirror-writer", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Write everything that waits, then end the thread. Nothing can be submitted any more."""
        with self._changed:
            self._closing = True
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join()

    def submit(self, prompt: Prompt) -> Future[Accepted]:
        """Queue one prompt; the future ends after its batch's commit.

        Raises:
            UnreachableError: the queue is full, or the writer is stopping or was never started.
        """
        with self._changed:
            if self._closing or self._thread is None:
                raise UnreachableError("the mirror is stopping", remedy="Send the request again later.")
            if len(self._waiting) >= self._capacity:
                raise UnreachableError(
                    "the mirror's queue is full", remedy="Mirror a smaller share, or send the request again later."
                )
            future: Future[Accepted] = Future()
            self._waiting.append((prompt, future))
            self._changed.notify_all()
            return future

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            # From here on a future cannot be cancelled; who cancelled before has gone away, and nothing was promised.
            self._write([item for item in batch if item[1].set_running_or_notify_cancel()])

    def _next_batch(self) -> list[Item] | None:
        """Wait for work and gather a batch; None when closing with nothing left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            self._changed.wait_for(self._batch_is_full, timeout=self._batch_seconds)
            if not self._waiting:
                return None
            return [self._waiting.popleft() for _ in range(min(self._batch_size, len(self._waiting)))]

    def _batch_is_full(self) -> bool:
        return len(self._waiting) >= self._batch_size or self._closing

    def _write(self, batch: Sequence[Item]) -> None:
        try:
            states = accept(self._store, [prompt for prompt, _ in batch], self._clock(), self._recent)
        except UnreachableError as error:
            _fail(batch, error)
        except Exception as error:
            # One prompt that the store refuses must not take its neighbours with it.
            if len(batch) == 1:
                _fail(batch, error)
            else:
                for item in batch:
                    self._write([item])
        else:
            for (_, future), state in zip(batch, states, strict=True):
                future.set_result(state)


def _fail(batch: Sequence[Item], error: Exception) -> None:
    for _, future in batch:
        future.set_exception(error)
