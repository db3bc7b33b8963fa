"""Canary's own engine behind the shadow port: both arms of a subject on one target, traced and scored, or alone and timed.

Both arms share tokenizer, chat template, target and loop; they differ in the drafter alone (and in a drill's fault, which the
candidate alone has).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter

import torch
import transformers
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import canary
from canary.domain.errors import ModelError
from canary.domain.pairs import Arm, Generation, Timing
from canary.domain.policy import Shadow, Subject
from canary.engine import checkpoints
from canary.engine.adaptive import AdaptiveK, CostTable
from canary.engine.admission import WHOLE, Pieces
from canary.engine.decode import Decoder
from canary.engine.drafters.adaptive import AdaptiveDrafter
from canary.engine.drafters.base import Drafter
from canary.engine.drafters.build import Setting, build
from canary.engine.drafters.drawing import Drawing
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.drafters.transfers import Transfers
from canary.engine.dtypes import resolve_dtype
from canary.engine.faults import get_fault
from canary.engine.forward import RowForward
from canary.engine.graphs import find_capture, stepping
from canary.engine.hooks import CLEAN, Hooks, of_verification
from canary.engine.memory import report
from canary.engine.probe import WidthCost, draft_costs, verify_costs
from canary.engine.render import encode, left_out, request_digest
from canary.engine.replay import is_chosen, replay, with_replay
from canary.engine.requests import Job, Running
from canary.engine.score import Remembered, score
from canary.engine.streams import key_from_bytes
from canary.engine.timed import timed
from canary.engine.transfer import find_device
from canary.flow.ports import ArmRequest, EngineInfo

# Raised whenever sampling, verification, drafting or chat rendering may give other tokens than before.
PIPELINE_VERSION = 2
PROBE_REPEATS = 3
_EXACT = "float32"


@dataclass(frozen=True, slots=True)
class _Loaded:
    """A target and what belongs to it."""

    path: Path
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class _Target:
    """A loaded target, its rows, and what a verification costs on them here and now."""

    loaded: _Loaded
    rows: RowForward
    costs: tuple[WidthCost, ...]


@lru_cache(maxsize=4)
def _target(path: Path, digest: str, dtype: str, num_rows: int, device: torch.device, graphs: str) -> _Target:
    """Load a target once per process: routes that share it run one after the other on it.

    Args:
        digest: of the weights, so that replaced files are loaded anew.
    """
    loaded = _Loaded(path, *checkpoints.load(path, dtype, device))
    rows = RowForward(loaded.model, num_rows, graphs=graphs)
    return _Target(loaded, rows, verify_costs(rows, repeats=PROBE_REPEATS))


class OwnEngine:
    """Runs a subject's baseline and candidate; see `flow.ports.ShadowEngine`.

    Attributes:
        info: what the engine is; its fingerprint is the epoch's base.
        calibrating: whether traces carry the distances of the alternatives, which calibration needs and later pairs do not.
        transfers: what crosses to a drafter on a device of its own, counted; None where it shares the target's.
    """

    def __init__(self, info: EngineInfo, target: _Target, shadow: Shadow, drafter: Drafter, hooks: Hooks = CLEAN) -> None:
        self.info = info
        self.calibrating = True
        self.transfers: Transfers | None = None
        self._loaded, self._shadow, self._plain_rows = target.loaded, shadow, target.rows
        self._remembered = Remembered()
        loaded, rows = target.loaded, target.rows
        ends = checkpoints.eos_ids(loaded.model, loaded.tokenizer)
        k, adapts = info.num_speculative_tokens, isinstance(drafter, AdaptiveDrafter)
        loop = partial(Decoder, rows, loaded.tokenizer, ends, clock=perf_counter, pieces=_pieces(info.exact_rows))
        self._decoders = {
            Arm.BASELINE: loop(),
            Arm.CANDIDATE: loop(drafter, k, hooks=hooks, pads=not adapts),
        }
        # The candidate's seat of an A/A pair: k = 0 on the same rows, fewer of them together, and traced as the candidate is.
        self._control = loop(most=shadow.control_rows, trace_plain=True)

    @classmethod
    def open(
        cls,
        subject: Subject,
        shadow: Shadow,
        cache_dir: Path,
        *,
        threads: int | None = None,
        progress: checkpoints.Progress | None = None,
    ) -> OwnEngine:
        """Load a subject.

        Args:
            cache_dir: where converted models are kept.
            threads: torch threads, None leaves them as they are.
            progress: see `checkpoints.prepare`.

        Raises:
            ModelError: target or draft model cannot be used; names the policy field.
            UsageError: the fault is unknown or cannot show with this drafter.
        """
        if subject.engine != "own":
            raise ModelError(f"engine {subject.engine!r} is unknown", where="subject.engine", remedy="Use own.")
        if subject.drafter.num_speculative_tokens < 1:
            raise ModelError(
                f"num_speculative_tokens is {subject.drafter.num_speculative_tokens}",
                where="subject.drafter.num_speculative_tokens",
                remedy="Ask for at least 1 draft token; the baseline is run anyway.",
            )
        if threads is not None:
            torch.set_num_threads(threads)
        device = find_device(subject.device, "subject.device")
        find_capture(subject.graphs, device)
        path = checkpoints.prepare(subject.target, cache_dir, progress)
        subject = replace(subject, dtype=resolve_dtype(subject.dtype, path, cache_dir, device))
        digest, num_rows = checkpoints.weights_digest(path), shadow.batch_size
        target = _target(path, digest, subject.dtype, num_rows, device, subject.graphs)
        loaded = target.loaded
        fault = None if subject.fault is None else get_fault(subject.fault)
        method = of_verification(subject.drafter.verification)
        hooks = method if fault is None else fault.inject(method)
        drawing = Drawing(hooks.draw, hooks.uniforms)
        built = build(Setting(subject, target.rows, loaded.model, loaded.tokenizer, cache_dir, drawing))
        if fault is not None:
            get_fault(fault.name, built.drafter.kind)
        drafter, k = hooks.drafter(built.drafter), subject.drafter.num_speculative_tokens
        adapts = subject.drafter.adaptive and fault is None
        if adapts:
            drafter, hooks = _adaptive(drafter, target, k), of_verification(subject.drafter.verification, drafter.kind)
        described = _describe(subject, loaded) | _ran(target.rows, subject.dtype) | dict(built.facts)
        described["adaptive"] = str(adapts).lower()
        info = EngineInfo(
            fingerprint=hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest(),
            drafter_kind=drafter.kind,
            num_speculative_tokens=k,
            exact_rows=subject.dtype == _EXACT,
            vocab_size=target.rows.vocab_size,
            described=described,
            verify_costs={f"{c.batch}x{c.width}": round(c.milliseconds, 3) for c in target.costs},
            memory=report(loaded.model, target.rows, built),
            left_out=left_out(loaded.tokenizer),
        )
        engine = cls(info, target, shadow, drafter, hooks)
        engine.transfers = built.transfers
        return engine

    def generate(self, requests: Sequence[ArmRequest], arm: Arm) -> list[Generation]:
        """Run one arm of a batch, traced and scored; a request that cannot run comes back with its `error`."""
        decoder = self._decoder(arm, requests)
        decoder.want_tv = self.calibrating and decoder.k > 0
        self._remembered.next_arm()
        jobs = [self._job(i, request) for i, request in enumerate(requests)]
        done: dict[int, Generation] = {}
        late: dict[int, torch.Tensor] = {}  # raw rows of the answers to replay, which has to wait until the rows are free
        for running in decoder.run(jobs, traced=True):
            at = running.job.index
            if arm is Arm.CANDIDATE and running.error is None and running.record and is_chosen(requests[at].key):
                late[at] = running.record.rows()
            done[at] = self._generation(running, arm, decoder)
        for at, logits in late.items():
            done[at] = self._replayed(done[at], jobs[at], logits)
        return [done[i] for i in range(len(requests))]

    def time_block(self, requests: Sequence[ArmRequest], arm: Arm) -> Timing:
        """Run one arm of a block together and untraced, for its timing; see `engine.timed`."""
        return timed(self._decoder(arm, requests), lambda: [self._job(i, request) for i, request in enumerate(requests)])

    def _decoder(self, arm: Arm, requests: Sequence[ArmRequest]) -> Decoder:
        """What runs the requests of one arm, either all of A/A pairs or none."""
        kinds = {request.control for request in requests}
        if len(kinds) > 1:
            raise ValueError("requests of A/A pairs and of others do not share a batch of one arm")
        return self._control if arm is Arm.CANDIDATE and True in kinds else self._decoders[arm]

    def _job(self, index: int, request: ArmRequest) -> Job:
        params = request.params.clamped(self._shadow.max_tokens)
        try:
            ids, why = encode(self._loaded.tokenizer, request.prompt), None
        except Exception as error:  # a chat template is a program of the model's and may raise anything
            ids, why = (), f"the prompt cannot be rendered: {type(error).__name__}: {error}"
        return Job(index, ids, params, key_from_bytes(request.key), why, request.prompt.form)

    def _replayed(self, generation: Generation, job: Job, logits: torch.Tensor) -> Generation:
        assert generation.rows is not None
        distances = replay(self._plain_rows, job.token_ids, generation.token_ids, logits, job.params)
        return replace(generation, rows=with_replay(generation.rows, distances))

    def _generation(self, running: Running, arm: Arm, decoder: Decoder) -> Generation:
        job, failed = running.job, running.error is not None
        trace = rows = None
        if not failed and running.record is not None:
            kept = running.record
            rows = score(
                self._loaded.model,
                job.token_ids,
                running.token_ids,
                kept.rows(),
                job.params,
                kept.processed_rows(),
                self._remembered,
                running.shaping,
                running.logprobs,
            )
            trace = running.record.columns() if arm is Arm.CANDIDATE else None
            running.record.clear()
        return Generation(
            arm=arm,
            token_ids=tuple(running.token_ids),
            text=decoder.hooks.text(running, decoder.words),
            finish_reason=running.finish_reason or "error",
            stats=running.stats(decoder.k),
            error=running.error,
            trace=trace,
            rows=rows,
            request_digest=request_digest(job.token_ids, job.params, job.form),
        )


def _adaptive(drafter: Drafter, target: _Target, k: int) -> AdaptiveDrafter:
    """The drafter with adaptive k, from what steps and drafts cost here and now."""
    free = isinstance(drafter, NgramDrafter)
    costs = CostTable.of(target.costs, {} if free else draft_costs(drafter, target.rows, k))
    return AdaptiveDrafter(drafter, AdaptiveK(costs, k, target.rows.num_rows))


def _pieces(exact: bool) -> Pieces:
    """Long prompts come in pieces in single precision alone: in 16 bit these round otherwise than the whole prompt."""
    return Pieces() if exact else WHOLE


def _ran(rows: RowForward, dtype: str) -> dict[str, str]:
    """How the target's rows are computed, which their last bits hang on."""
    return {
        "device": rows.device.type,
        "forward": rows.forward,
        "graphs": stepping(rows.graphs),
        "prefill": _pieces(dtype == _EXACT).described,
    }


def _describe(subject: Subject, loaded: _Loaded) -> dict[str, str]:
    """Everything that could change the outputs, by name."""
    return {
        "engine": f"canary {canary.__version__}",
        "pipeline": str(PIPELINE_VERSION),
        "libraries": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "target": subject.target,
        "target_weights": checkpoints.weights_digest(loaded.path),
        "tokenizer": checkpoints.tokenizer_digest(loaded.path),
        "chat_template": checkpoints.chat_template_digest(loaded.tokenizer),
        "dtype": subject.dtype,
        "drafter": subject.drafter.name,
        "num_speculative_tokens": str(subject.drafter.num_speculative_tokens),
        "verification": subject.drafter.verification,
        "fault": subject.fault or "none",
    }
