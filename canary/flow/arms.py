"""The arms of a pair: what keys and orders them, which pairs are A/A, and how an arm is run so that a request which breaks the
engine fails alone.

Canary's own errors pass through, since they are about the engine and not about one request; a broken accounting identity is the
arm's own failure. Nothing here repeats a prompt's text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence

from canary.domain.errors import CanaryError, IdentityError
from canary.domain.flag import BUCKETS, bucket
from canary.domain.pairs import Arm, DecodeStats, Generation, Timing
from canary.domain.policy import Shadow
from canary.domain.traffic import Prompt
from canary.flow.ports import ArmRequest, ControlRule, Observer, ShadowEngine, no_controls

LONGEST = 200  # characters of a foreign error's message that are kept
SHARED = 8  # characters in a row that make a message a quotation
CONTROL_SALT = "canary.control."
EARLY_CONTROLS = 4  # below this ordinal every second one is A/A


def arm_key(pair: str, arm: Arm, choice: int = 0) -> bytes:
    """16 bytes that key every draw of one arm of one choice (DESIGN section 4, random numbers)."""
    return hashlib.blake2b(f"{pair}\x1f{arm.value}\x1f{choice}".encode(), digest_size=16).digest()


def order(pair: str) -> tuple[Arm, Arm]:
    """Which arm runs first: a fair coin that a retry tosses the same way."""
    coin = hashlib.blake2b(f"{pair}\x1forder".encode(), digest_size=1).digest()[0]
    return (Arm.BASELINE, Arm.CANDIDATE) if coin & 1 else (Arm.CANDIDATE, Arm.BASELINE)


def control_rule(shadow: Shadow) -> ControlRule:
    """Which ordinals are A/A pairs: a share of `control_rate` by a salted hash of the pair id, and ordinals 1 and 3.

    The early two are there so that a grossly broken harness shows in the A/A arm before it is held against the candidate; at the
    rate alone it would be twenty times slower. Of the calibrating ordinals every second one at most is A/A, so that enough
    of them calibrate. Both are known before anything is drawn.
    """
    if not shadow.control_rate:
        return no_controls

    def is_control(ordinal: int, pair: str) -> bool:
        if ordinal < shadow.calibration_requests:
            if ordinal % 2 == 0:
                return False
            if ordinal < EARLY_CONTROLS:
                return True
        return bucket(CONTROL_SALT, pair) < shadow.control_rate * BUCKETS

    return is_control


def generate(
    engine: ShadowEngine, requests: Sequence[ArmRequest], arm: Arm, *, alive: Callable[[], None], observer: Observer
) -> Sequence[Generation]:
    """Run the arm; if a pass breaks, run its requests one by one, with the same draws. A/A requests have a pass of their own.

    Args:
        alive: called before a second pass and before every request that runs alone.

    Returns:
        One generation per request; one that breaks alone too comes back with its `error`.
    """
    done: dict[int, Generation] = {}
    for control in (False, True):
        mine = {at: request for at, request in enumerate(requests) if request.control is control}
        if mine and done:
            alive()
        if mine:
            done |= zip(mine, _pass(engine, list(mine.values()), arm, alive, observer), strict=True)
    return [done[at] for at in range(len(requests))]


def _pass(
    engine: ShadowEngine, requests: Sequence[ArmRequest], arm: Arm, alive: Callable[[], None], observer: Observer
) -> Sequence[Generation]:
    try:
        return engine.generate(requests, arm)
    except Exception as error:
        if isinstance(error, CanaryError) and not isinstance(error, IdentityError):
            raise
        why = described(error, [r.prompt for r in requests])
    # Not inside the handler: the traceback keeps every tensor of the interrupted batch in memory, which may be what ran out.
    observer.note("batch_rerun", arm=arm.value, requests=len(requests), detail=why)
    done = []
    for request in requests:
        alive()
        done.append(_alone(engine, request, arm, observer))
    return done


def time_block(engine: ShadowEngine, requests: Sequence[ArmRequest], arm: Arm, *, observer: Observer) -> Timing | None:
    """Time the arm of a block of requests; None if that breaks."""
    try:
        return engine.time_block(requests, arm)
    except Exception as error:
        if isinstance(error, CanaryError) and not isinstance(error, IdentityError):
            raise
        why = described(error, [request.prompt for request in requests])
    observer.note("timing_failed", arm=arm.value, requests=len(requests), detail=why)
    return None


def _alone(engine: ShadowEngine, request: ArmRequest, arm: Arm, observer: Observer) -> Generation:
    try:
        (generation,) = engine.generate([request], arm)
        return generation
    except Exception as error:
        if isinstance(error, CanaryError) and not isinstance(error, IdentityError):
            raise
        why = described(error, [request.prompt])
    observer.note("request_failed", arm=arm.value, detail=why)
    k = engine.info.num_speculative_tokens if arm is Arm.CANDIDATE and not request.control else 0
    return Generation(arm, (), "", "error", DecodeStats(k, (), ()), error=why)


def described(error: Exception, prompts: Sequence[Prompt]) -> str:
    """Type and first line of an error; the message is left out where it shares text with one of the prompts."""
    name = type(error).__name__
    message = next(iter(str(error).strip().splitlines()), "")[:LONGEST]
    if not message:
        return name
    if any(_quotes(message, text) for prompt in prompts for text in _texts(prompt)):
        return f"{name} (its message quotes the prompt and is left out)"
    return f"{name}: {message}"


def _texts(prompt: Prompt) -> Iterator[str]:
    """What the client wrote, plain and as Python escapes it."""
    called = (call.arguments for message in prompt.messages for call in message.tool_calls)
    for text in (prompt.text, *(m.content for m in prompt.messages), *called, *_described_tools(prompt.form.tools)):
        if text and text.strip():
            yield text.strip()
            yield ascii(text.strip())[1:-1]


def _described_tools(tools: str) -> Iterator[str]:
    """What a client says about its tools in words; names and types of JSON Schema stand in honest errors too."""
    todo = [json.loads(tools)] if tools else []
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            if isinstance(item.get("description"), str):
                yield item["description"]
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)


def _quotes(message: str, text: str) -> bool:
    if len(text) < SHARED:
        return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", message) is not None
    return any(message[at : at + SHARED] in text for at in range(max(1, len(message) - SHARED + 1)))
