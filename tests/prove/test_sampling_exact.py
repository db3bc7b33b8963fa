"""Every parameter, drafter and way to judge drafts against exactly enumerated probabilities, 20,000 answers each.

A new drafter or way to judge only adds a row. A case takes some seconds of one core (`-m prove -s` prints its figures).
"""

from __future__ import annotations

import math
from functools import lru_cache
from zlib import crc32

import pytest
import torch
from transformers import PreTrainedModel

from canary.engine.decode import Decoder
from canary.engine.hooks import METHODS
from tests.bench.exactness import CITED, SAMPLES, fault_row
from tests.engine.exactness import PARAMETERS, chi_square, hooks_of, requests, small_model
from tests.engine.waves import MAKE, speculating

pytestmark = [pytest.mark.prove, pytest.mark.timeout(7200)]

LEVEL = 1e-3


@lru_cache(maxsize=1)
def model() -> PreTrainedModel:
    torch.set_num_threads(1)
    return small_model()


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drafter", MAKE)
def test_answers_have_their_enumerated_probabilities(drafter: str, method: str, name: str) -> None:
    case = f"{drafter}, {method}, {name}"
    p, acceptance = chi_square(model(), drafter, PARAMETERS[name], SAMPLES, hooks_of(drafter, method), crc32(case.encode()))
    print(f"\n{case}: p {p:.4f}, acceptance {acceptance:.3f}", flush=True)
    assert p > LEVEL
    assert 0 < acceptance < 1


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_baseline_too(name: str) -> None:
    p, acceptance = chi_square(model(), "none", PARAMETERS[name], SAMPLES, seed=crc32(name.encode()))
    print(f"\nnone, {name}: p {p:.4f}", flush=True)
    assert p > LEVEL
    assert math.isnan(acceptance)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drafter", [name for name in MAKE if not name.startswith("adaptive")])
def test_a_wave_gives_the_answers_of_the_ordinary_loop(drafter: str, method: str, name: str) -> None:
    """So that what is said above of waves is said of the loop, whatever its batches."""
    asked, hooks = requests(PARAMETERS[name], 150), hooks_of(drafter, method)
    wave = {r.job.index: r for r in speculating(model(), drafter, hooks).run(asked)}
    alone = {r.job.index: r for r in speculating(model(), drafter, hooks, rows=7, loop=Decoder).run(asked)}
    for index, running in wave.items():
        other = alone[index]
        assert (running.token_ids, running.drafted, running.accepted) == (other.token_ids, other.drafted, other.accepted)


@pytest.mark.parametrize("fault", [name for name in CITED if not CITED[name]])
def test_faults_are_seen(fault: str) -> None:
    row = fault_row(model(), fault)
    print(f"\n{row}", flush=True)
    assert row.p < LEVEL
