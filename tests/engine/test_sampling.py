"""The pipeline equals transformers' own processors, and drawing is exact, also for odd rows."""

from __future__ import annotations

import itertools

import pytest
import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from canary.domain.traffic import SamplingParams
from canary.engine.rows import Rows
from canary.engine.sampling import INVALID, argmax, block_sums, draw, mass_around, process, unfiltered

VOCAB = 1000
SETTINGS = [
    SamplingParams(max_tokens=1, temperature=t, top_k=k, top_p=p)
    for t, k, p in itertools.product((1.0, 0.3, 0.7, 1.7), (0, 1, 7, 5000), (1.0, 0.9, 0.5, 0.05, 0.999))
]


def reference(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """What `generate` of transformers draws from, for one row."""
    scores = logits[None] if logits.dtype == torch.float64 else logits[None].float()
    ids = torch.zeros(1, 1, dtype=torch.long)
    if params.temperature == 0:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[1])[0].to(scores.dtype)
    if params.temperature != 1:
        scores = TemperatureLogitsWarper(params.temperature)(ids, scores)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    return scores.softmax(-1)[0]


def random_logits(seed: int, rows: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mixed_batch_equals_transformers_row_by_row(dtype: torch.dtype) -> None:
    params = [*SETTINGS, SamplingParams(max_tokens=1, temperature=0.0)]
    logits = random_logits(0, len(params)).to(dtype)
    probs = process(logits, Rows.of(params))
    assert probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for row, expected in zip(range(len(params)), map(reference, logits, params), strict=True):
        assert torch.equal(probs[row] > 0, expected > 0), params[row]
        assert torch.allclose(probs[row], expected, rtol=1e-5, atol=0), params[row]


def test_ties_of_bfloat16_keep_as_many_and_as_much_as_transformers() -> None:
    """Which of several equal logits at the edge of the nucleus goes is up to an unstable sort there, and to the id here."""
    logits = random_logits(0, len(SETTINGS)).bfloat16()
    probs = process(logits, Rows.of(SETTINGS))
    expected = torch.stack([reference(row, params) for row, params in zip(logits, SETTINGS, strict=True)])
    assert torch.equal((probs > 0).sum(1), (expected > 0).sum(1))
    assert torch.allclose(probs.sort().values, expected.sort().values, rtol=1e-5, atol=0)
    for row, kept in zip(logits.tolist(), (probs > 0).tolist(), strict=True):
        least = min(x for x, stays in zip(row, kept, strict=True) if stays)
        tied = [stays for x, stays in zip(row, kept, strict=True) if x == least]
        assert tied == sorted(tied)


@pytest.mark.parametrize("top_p", [0.0, 0.2, 0.25, 0.5, 0.75, 0.9])
@pytest.mark.parametrize("row", [[1.0, 1, 1, 1], [0.0, 0, 5, 5], [9.0, -50, -50, -50], [2.0, 2, 2, -torch.inf], [3.0, 2, 1, 0]])
def test_ties_and_edges_equal_transformers(row: list[float], top_p: float) -> None:
    logits = torch.tensor([row], dtype=torch.float64)
    for top_k in (0, 1, 2, 3, 4, 9):
        params = SamplingParams(max_tokens=1, top_k=top_k, top_p=top_p)
        assert torch.allclose(process(logits, Rows.of([params]))[0], reference(logits[0], params), rtol=1e-12, atol=0)


def test_a_row_does_not_depend_on_its_batch() -> None:
    params = [*SETTINGS, SamplingParams(max_tokens=1, temperature=0.0)]
    logits = random_logits(1, len(params), vocab=613)
    together = process(logits, Rows.of(params))
    for index, each in enumerate(params):
        assert torch.equal(process(logits[index : index + 1], Rows.of([each]))[0], together[index])


def test_rows_repeat_each_request() -> None:
    params = [SamplingParams(max_tokens=1, temperature=0.0), SamplingParams(max_tokens=1, top_k=3, top_p=0.5)]
    rows = Rows.of(params, repeat=2)
    assert rows.greedy.tolist() == [True, True, False, False]
    assert rows.top_k_rows.tolist() == rows.top_p_rows.tolist() == [2, 3]
    assert (rows.any_greedy, rows.all_greedy, rows.plain, rows.max_top_k) == (True, False, False, 3)


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = torch.zeros(1, 600)
    logits[0, [299, 301, 599]] = 4.0
    assert process(logits, Rows.of([SamplingParams(max_tokens=1, temperature=0.0)])).nonzero().tolist() == [[0, 299]]


@pytest.mark.parametrize("vocab", [1, 5, 255, 256, 257, 1000])
def test_argmax_equals_torchs(vocab: int) -> None:
    values = random_logits(2, 40, vocab).bfloat16()
    ids, largest = argmax(values)
    assert torch.equal(ids, values.float().argmax(1))
    assert torch.equal(largest, values.amax(1))


def test_unfiltered_is_the_raw_softmax_or_nothing() -> None:
    logits = random_logits(3, 2, 50)
    plain, cold = SamplingParams(max_tokens=1), SamplingParams(max_tokens=1, temperature=0.5)
    assert unfiltered(logits, Rows.of([plain, plain])) is None
    assert unfiltered(logits, Rows.of([SamplingParams(max_tokens=1, temperature=0.0)] * 2)) is None
    raw = unfiltered(logits, Rows.of([plain, cold]))
    assert raw is not None
    assert torch.equal(raw, logits.softmax(-1))
    assert torch.equal(process(logits, Rows.of([plain, cold]))[0], raw[0])


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.7])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_row_is_poisoned_and_drawn_as_invalid(temperature: float, top_p: float, bad: float) -> None:
    params = SamplingParams(max_tokens=1, temperature=temperature, top_k=0 if top_p == 1 else 5, top_p=top_p)
    logits = random_logits(4, 3, 600)
    logits[1, 400] = bad
    probs = process(logits, Rows.of([params] * 3))
    assert probs[1].isnan().all()
    tokens, _ = draw(probs, torch.full((3,), 0.5))
    assert (tokens == INVALID).tolist() == [False, True, False]


def test_a_row_without_mass_is_drawn_as_invalid() -> None:
    assert process(torch.full((1, 9), -torch.inf), Rows.of([SamplingParams(max_tokens=1)])).isnan().all()
    assert draw(torch.zeros(2, 9), torch.tensor([0.0, 0.9])).tokens.tolist() == [INVALID, INVALID]


@pytest.mark.parametrize("vocab", [5, 256, 700])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_draw_has_exactly_the_probability_of_its_row(vocab: int, dtype: torch.dtype) -> None:
    """Between neighbouring breakpoints of the running sum the draw is constant, so one visit per cell is all there is."""
    row = random_logits(5, 1, vocab).softmax(-1).to(dtype)
    row[0, ::3] = 0
    ends = row[0].double().cumsum(0)
    starts = ends - row[0].double()
    seen = row[0] > (1e-6 if dtype == torch.float32 else 0)  # a block's mass carries the rounding of its own type
    middles = ((starts + ends) / 2 / ends[-1])[seen]
    tokens, probs = draw(row.expand(len(middles), vocab), middles)
    assert torch.equal(tokens, seen.nonzero()[:, 0])
    assert probs.data_ptr() == row.data_ptr()


def test_a_draw_never_lands_on_a_token_without_mass() -> None:
    row = torch.zeros(1, 1030)
    row[0, [3, 255, 256, 700]] = torch.tensor([0.1, 1e-9, 0.2, 0.7])
    extremes = torch.tensor([0.0, 5e-324, 0.1, 0.3, 0.99999999, 1 - 2**-53], dtype=torch.float64)
    tokens = draw(row.expand(6, -1), extremes).tokens.tolist()
    assert set(tokens) <= {3, 255, 256, 700}
    assert (tokens[0], tokens[-1]) == (3, 700)
    assert draw(row * 1e-3, extremes[-1:]).tokens.item() == 700
    late = torch.zeros(1, 1030).index_fill(1, torch.tensor([300, 900]), 0.5)  # a goal on the edge of a block without mass
    assert draw(late.expand(2, -1), torch.tensor([0.0, 0.5])).tokens.tolist() == [300, 900]


def test_masses_of_both_sides_keep_their_digits() -> None:
    row = torch.zeros(1, 600, dtype=torch.float64)
    row[0, [2, 300, 599]] = torch.tensor([1e-20, 1.0, 3e-20], dtype=torch.float64)
    below, above = mass_around(row, torch.tensor([300]), block_sums(row))
    assert (below.item(), above.item()) == (1e-20, 3e-20)
