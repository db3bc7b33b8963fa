"""How domain values become columns and come back: byte for byte, bit for bit.

Packed columns are little-endian; `VERSION` is stored with every pair and an unknown one is refused, never guessed at.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import numpy as np
import zstandard
from sqlalchemy import RowMapping

from canary.domain.errors import CanaryError
from canary.domain.pairs import Arm, Columns, DecodeStats, Generation, Pair, Timing
from canary.domain.traffic import PLAIN_FORM, AnswerForm, Message, Prompt, SamplingParams, Stratum, ToolCall

VERSION = 1


def moment(seconds: float) -> datetime:
    """Seconds since the epoch as a timestamp, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC)


def scrub(value: str) -> str:
    """The string as a `text` column can hold it: NUL and lone surrogates become U+FFFD."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def deflate(block: bytes) -> bytes:
    """Compress; the frame carries its size and a checksum."""
    return zstandard.ZstdCompressor(level=3, write_checksum=True).compress(block)


def inflate(block: bytes) -> bytes:
    """The inverse of `deflate`."""
    return zstandard.ZstdDecompressor().decompress(block)


def pack_ints(values: tuple[int, ...]) -> bytes:
    return np.asarray(values, dtype="<i4").tobytes()


def unpack_ints(block: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(block, dtype="<i4").tolist())


def prompt_key(source: str, request_id: str) -> bytes:
    """16 bytes that stand for (source, request id); the length in front keeps ("ab", "c") and ("a", "bc") apart."""
    head, tail = (part.encode("utf-8", "surrogatepass") for part in (source, request_id))
    return hashlib.blake2b(len(head).to_bytes(8, "little") + head + tail, digest_size=16).digest()


def pack_understood(prompt: Prompt) -> bytes:
    """Everything of a prompt but its body, exactly (the `text` columns beside it are scrubbed)."""
    fields = {
        "source": prompt.source,
        "request_id": prompt.request_id,
        "route": prompt.route,
        "endpoint": prompt.endpoint,
        "messages": [_pack_message(m) for m in prompt.messages],
        "text": prompt.text,
        "params": asdict(prompt.params),
        "stream": prompt.stream,
    }
    if prompt.form != PLAIN_FORM:
        fields["form"] = asdict(prompt.form)
    return deflate(json.dumps(fields, separators=(",", ":")).encode())


def unpack_prompt(body: bytes, understood: bytes) -> Prompt:
    """The prompt as it was given to `add_many`."""
    fields = json.loads(inflate(understood))
    params = SamplingParams.from_json(fields.pop("params"))
    messages = tuple(_unpack_message(*packed) for packed in fields.pop("messages"))
    form = AnswerForm(**fields.pop("form", {}))
    return Prompt(body=inflate(body), messages=messages, params=params, form=form, **fields)


def _pack_message(message: Message) -> list[Any]:
    if message == Message(message.role, message.content):
        return [message.role, message.content]
    whole = asdict(message)
    return [whole.pop("role"), whole.pop("content"), whole]


def _unpack_message(role: str, content: str | None, whole: dict[str, Any] | None = None) -> Message:
    if whole is None:
        return Message(role, content)
    calls = tuple(ToolCall(**call) for call in whole.pop("tool_calls"))
    return Message(role, content, calls, **whole)


def pack_pair(pair: Pair, now: float) -> dict[str, Any]:
    """The pair as one row of `pairs`."""
    row: dict[str, Any] = {
        "stored_at": moment(now),
        "pair_id": pair.pair_id,
        "packing": VERSION,
        "route": pair.route,
        "epoch": pair.epoch,
        "attempt": pair.attempt,
        "ordinal": pair.ordinal,
        "stratum": pair.stratum.value,
        "first": pair.first.value,
        "control": pair.control,
        "error": None if pair.error is None else scrub(pair.error),
        "calibration_hash": pair.calibration_hash,
        "increments": pair.increments,
    }
    for generation, timing in ((pair.baseline, pair.baseline_timing), (pair.candidate, pair.candidate_timing)):
        for name, value in _pack_arm(generation, timing).items():
            row[f"{generation.arm.value}_{name}"] = value
    return row


def _pack_arm(generation: Generation, timing: Timing | None) -> dict[str, Any]:
    stats = generation.stats
    return {
        "finish_reason": generation.finish_reason,
        "error": None if generation.error is None else scrub(generation.error),
        "num_tokens": len(generation.token_ids),
        "num_speculative_tokens": stats.num_speculative_tokens,
        "num_steps": stats.num_steps,
        "num_drafts": stats.num_drafts,
        "num_draft_tokens": stats.num_draft_tokens,
        "num_accepted_tokens": stats.num_accepted_tokens,
        "num_cut": stats.num_cut,
        "ttft_seconds": timing and timing.ttft_seconds,
        "total_seconds": timing and timing.total_seconds,
        "timed_tokens": timing and timing.num_tokens,
        "timing_concurrency": timing and timing.concurrency,
        "token_ids": pack_ints(generation.token_ids),
        "text": deflate(generation.text.encode("utf-8", "surrogatepass")),
        "drafted": pack_ints(stats.drafted),
        "accepted": pack_ints(stats.accepted),
        "trace": generation.trace and generation.trace.to_bytes(),
        "rows": generation.rows and generation.rows.to_bytes(),
        "request_digest": generation.request_digest or None,
        "valid": generation.valid,
        "agrees": generation.agrees,
    }


def unpack_pair(row: RowMapping) -> Pair:
    """The inverse of `pack_pair`.

    Raises:
        CanaryError: the row was packed by a version that this one does not know.
    """
    if row["packing"] != VERSION:
        raise CanaryError(
            f"pair is packed with version {row['packing']}, this Canary reads {VERSION}",
            where=f"pairs/{row['pair_id']}",
            remedy="Upgrade Canary to the version that wrote it.",
        )
    baseline, baseline_timing = _unpack_arm(row, Arm.BASELINE)
    candidate, candidate_timing = _unpack_arm(row, Arm.CANDIDATE)
    return Pair(
        pair_id=row["pair_id"],
        route=row["route"],
        epoch=row["epoch"],
        attempt=row["attempt"],
        ordinal=row["ordinal"],
        stratum=Stratum(row["stratum"]),
        first=Arm(row["first"]),
        baseline=baseline,
        candidate=candidate,
        increments=row["increments"],
        calibration_hash=row["calibration_hash"],
        baseline_timing=baseline_timing,
        candidate_timing=candidate_timing,
        error=row["error"],
        control=row["control"],
    )


def _unpack_arm(row: RowMapping, arm: Arm) -> tuple[Generation, Timing | None]:
    def of(name: str) -> Any:
        return row[f"{arm.value}_{name}"]

    def columns(name: str) -> Columns | None:
        return None if of(name) is None else Columns.from_bytes(of(name))

    generation = Generation(
        arm=arm,
        token_ids=unpack_ints(of("token_ids")),
        text=inflate(of("text")).decode("utf-8", "surrogatepass"),
        finish_reason=of("finish_reason"),
        stats=DecodeStats(
            num_speculative_tokens=of("num_speculative_tokens"),
            drafted=unpack_ints(of("drafted")),
            accepted=unpack_ints(of("accepted")),
            num_cut=of("num_cut"),
        ),
        error=of("error"),
        trace=columns("trace"),
        rows=columns("rows"),
        request_digest=of("request_digest") or "",
        valid=of("valid"),
        agrees=of("agrees"),
    )
    if of("ttft_seconds") is None:
        return generation, None
    return generation, Timing(of("ttft_seconds"), of("total_seconds"), of("timed_tokens"), of("timing_concurrency"))
