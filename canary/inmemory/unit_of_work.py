"""One transaction at a time on the store in dictionaries; leaving it without `commit` keeps nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from canary.flow import ports
from canary.inmemory.access import Answers, Keys
from canary.inmemory.audit import Audit
from canary.inmemory.claims import Claims
from canary.inmemory.evidence import Evidence
from canary.inmemory.flags import Flags, Kills, Pins
from canary.inmemory.jobs import Jobs, Leaders, Notices
from canary.inmemory.pairs import Pairs
from canary.inmemory.rollouts import Policies, Proposals, Rollouts
from canary.inmemory.shadow_runs import ShadowRuns
from canary.inmemory.state import State
from canary.inmemory.traffic import Mirrored, Observations, Prompts


class InMemoryTransaction:
    """`Transaction` on a copy of the state."""

    def __init__(self, store: InMemoryStore, state: State) -> None:
        self._store = store
        self._state = state
        self.prompts: ports.PromptStore = Prompts(state)
        self.mirrored: ports.MirroredStore = Mirrored(state)
        self.claims: ports.ClaimStore = Claims(state)
        self.pairs: ports.PairStore = Pairs(state)
        self.observations: ports.ObservationStore = Observations(state)
        self.evidence: ports.EvidenceStore = Evidence(state)
        self.rollouts: ports.RolloutStore = Rollouts(state)
        self.flags: ports.FlagStore = Flags(state)
        self.pins: ports.PinStore = Pins(state)
        self.kills: ports.KillStore = Kills(state)
        self.policies: ports.PolicyStore = Policies(state)
        self.proposals: ports.ProposalStore = Proposals(state)
        self.audit: ports.AuditStore = Audit(state)
        self.keys: ports.KeyStore = Keys(state)
        self.answers: ports.AnswerStore = Answers(state)
        self.notices: ports.NoticeStore = Notices(state)
        self.jobs: ports.JobStore = Jobs(state)
        self.shadow_runs: ports.ShadowRunStore = ShadowRuns(state)
        self.leaders: ports.LeaderStore = Leaders(state)

    def commit(self) -> None:
        """Keep everything since the transaction began."""
        self._store.state = self._state.copy()


class InMemoryStore:
    """`Store` in this process; transactions wait for each other and must not be nested."""

    def __init__(self) -> None:
        self.state = State()
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[InMemoryTransaction]:
        """One unit of work."""
        with self._lock:
            yield InMemoryTransaction(self, self.state.copy())
