"""The worlds are those of the power tables, and every fault does something to them that its row claims."""

from __future__ import annotations

import pytest
import torch

from canary.domain.pairs import DrafterKind
from tests.bench.worlds import PARAMS, BenchWorld, FaultyEngine, contexts_of, greedy, make
from tests.bench.worlds_faults import FAULTS
from tests.stats.world import CONTEXTS, Engine, World

REQUESTS = 20
PROMPTS = torch.arange(REQUESTS) * 7  # the first of them are among those that whole-request faults choose


@pytest.fixture(scope="module")
def worlds() -> dict[str, BenchWorld]:
    torch.set_num_threads(1)
    return {name: make(name) for name in PARAMS}


def run(world: World, fault: str | None = None, seed: int = 1, traced: bool = False):  # type: ignore[no-untyped-def]
    inject = None if fault is None else FAULTS[fault].inject
    return FaultyEngine(world, DrafterKind.DENSE, inject=inject, traced=traced).run(REQUESTS, seed, prompts=PROMPTS)


def test_the_worlds_have_the_published_figures(worlds: dict[str, BenchWorld]) -> None:
    def entropy(world: BenchWorld) -> torch.Tensor:
        return torch.special.entr(world.target.double()).sum(1)

    def distance(world: BenchWorld) -> float:
        return float((world.target - world.draft).abs().sum(1).mean() / 2)

    assert float(entropy(worlds["A"]).mean()) == pytest.approx(1.66, abs=0.2)
    assert float(entropy(worlds["B"]).median()) < 0.05  # most contexts of a filtered route are certain
    assert float(entropy(worlds["B"]).mean()) == pytest.approx(0.65, abs=0.15)
    assert distance(worlds["A"]) == pytest.approx(0.195, abs=0.02)
    assert distance(worlds["B"]) == pytest.approx(0.17, abs=0.03)
    for world in worlds.values():
        assert torch.allclose(world.target.sum(1), torch.ones(CONTEXTS), atol=1e-5)
    assert worlds["A"].unfiltered is None
    assert torch.allclose(worlds["A"].target, World.make().target, atol=1e-6)
    with pytest.raises(ValueError, match="no world 'C'"):
        make("C")


def test_a_clean_engine_is_the_simulator_bit_by_bit(worlds: dict[str, BenchWorld]) -> None:
    plain = Engine(worlds["A"], DrafterKind.DENSE).run(REQUESTS, 1, prompts=PROMPTS)
    mine = run(worlds["A"], traced=True)
    assert (plain.tokens == mine.tokens).all()
    assert all(plain.columns[name].tobytes() == mine.columns[name].tobytes() for name in plain.columns)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_changes_the_texts(worlds: dict[str, BenchWorld], fault: str) -> None:
    world = worlds["B" if fault == "residual_unfiltered" else "A"]
    assert (run(world, fault).tokens != run(world).tokens).any()


def test_tracing_changes_no_text(worlds: dict[str, BenchWorld]) -> None:
    for fault in ("stale_cache_10pct", "shared_noise"):
        assert (run(worlds["B"], fault, traced=True).tokens == run(worlds["B"], fault).tokens).all()


def test_faults_of_group_a_leave_greedy_text_as_it_is(worlds: dict[str, BenchWorld]) -> None:
    world = greedy(worlds["B"])
    clean = FaultyEngine(world, DrafterKind.ONE_HOT, k=0, traced=False).run(REQUESTS, 1, prompts=PROMPTS).tokens
    broken = {name for name, fault in FAULTS.items() if fault.group == "A" and (run(world, name).tokens != clean).any()}
    # The rows that these draw from are the draft's, whose argmax is another one; no acceptance rule stands in between.
    assert broken == {"bonus_from_draft", "tokens_from_draft_10pct", "tokens_from_draft_3pct"}


def test_a_seed_reset_ties_requests_together(worlds: dict[str, BenchWorld]) -> None:
    engine = FaultyEngine(worlds["A"], DrafterKind.DENSE, inject=FAULTS["seed_reset"].inject, traced=False)
    same = engine.run(4, 1, prompts=torch.full((4,), 7)).tokens
    assert (same == same[0]).all()
    assert (engine.run(4, 2, prompts=torch.full((4,), 7)).tokens == same).all()


def test_contexts_are_those_that_the_tokens_were_drawn_in(worlds: dict[str, BenchWorld]) -> None:
    prompts = torch.arange(REQUESTS) * 31 + 5
    engine = FaultyEngine(worlds["B"], DrafterKind.ONE_HOT, k=0, traced=False)
    tokens = engine.run(REQUESTS, 3, prompts=prompts).tokens
    mass = worlds["B"].target.numpy()[contexts_of(prompts.numpy(), tokens), tokens]
    assert (mass > 0).all()  # a nucleus is a few tokens of 256
    assert (worlds["B"].target.numpy()[contexts_of(prompts.numpy() + 1, tokens), tokens] == 0).any()
