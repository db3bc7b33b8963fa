"""Steps compiled by torch, for real: the loop's own tokens, and every shape compiled once."""

from __future__ import annotations

import shutil
from functools import partial

import pytest
import torch

from canary.engine import forward as forward_module
from canary.engine import graphs
from canary.engine.decode import Decoder
from canary.engine.drafters.ngram import NgramDrafter
from canary.engine.forward import RowForward
from canary.engine.graphs import COMPILE, OFF
from tests.engine.tiny import job, prompts, run_all, tiny_model, tiny_tokenizer

pytestmark = pytest.mark.prove
COMPILER = any(map(shutil.which, ("g++", "clang++", "c++")))


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize(
    "backend", ["eager", pytest.param("inductor", marks=pytest.mark.skipif(not COMPILER, reason="no C++ compiler"))]
)
def test_compiled_steps_give_the_loop_its_tokens(monkeypatch: pytest.MonkeyPatch, family: str, backend: str) -> None:
    torch._dynamo.reset()
    model = tiny_model(family, eos=False, loopy=True, seed=3)
    jobs = [job(i, ids, 16, temperature=0.0) for i, ids in enumerate(prompts(4, seed=6))]

    def run(rows: RowForward) -> list[list[int]]:
        return [r.token_ids for r in run_all(Decoder(rows, tiny_tokenizer(), frozenset(), NgramDrafter(2, 3), 3), jobs)]

    wanted = run(RowForward(model, 2))
    capture = partial(graphs.compiled, backend=backend)
    monkeypatch.setattr(forward_module, "find_capture", lambda mode, _device: None if mode == OFF else capture)
    rows = RowForward(model, 2, graphs=COMPILE)
    assert run(rows) == wanted
    assert rows.graphs is not None
    captures = rows.graphs.captures
    before = dict(torch._dynamo.utils.counters["stats"])
    assert run(rows) == wanted
    assert dict(torch._dynamo.utils.counters["stats"]) == before, "nothing is compiled again"
    assert (rows.graphs.note, rows.graphs.captures) == (None, captures)
