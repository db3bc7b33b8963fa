"""Catalogue groups A and F: greedy text stays right while sampled tokens move, by a wrong rule or by wrong random numbers."""

from __future__ import annotations

from canary.domain.catalogue.entry import DENSE, FaultEntry, Need

RULES: tuple[FaultEntry, ...] = (
    FaultEntry(
        "greedy_draft_softmax_q", "A1",
        "The drafter proposes its likeliest token and reports its softmax as the draft distribution.",
        "huggingface/transformers 32867, 33534; jaymody/speculative-sampling 3",
        "Greedy text is identical; sampled tokens lean to the draft's top token.", "bank (too_cold, draft_leak), DRAFT",
        kinds=DENSE,
    ),
    FaultEntry(
        "top_k_draft_raw_q", "A2", "The draft is drawn from its five likeliest tokens, the whole row is reported.",
        "huggingface/transformers 47932, 47961", "As A1, weaker.", "bank, DRAFT", kinds=DENSE,
    ),
    FaultEntry(
        "cold_draft", "A3", "The draft is drawn at half the temperature of the row that is reported.",
        "huggingface/transformers 40949, 40976",
        "Acceptance falls with the temperature; tokens lean to the draft's favourites.", "bank (too_cold), DRAFT",
        kinds=DENSE,
    ),
    FaultEntry(
        "hot_draft", "A3b", "The draft is drawn at 1.25 times the temperature of the row that is reported.",
        "huggingface/transformers 40949, 40976", "Tokens are a little too varied.", "bank (too_hot), DRAFT", kinds=DENSE,
    ),
    FaultEntry(
        "shifted_draft_q", "A4", "A draft is judged with the draft row of the next position.",
        "huggingface/transformers 28166", "Acceptance is too low and the output shifted.", "bank, ACC", kinds=DENSE,
        least_tokens=2,
    ),
    FaultEntry(
        "off_by_one_rows", "A4b", "In one round of fifty every target row but the first is the one before it.",
        "huggingface/transformers 28166", "A few tokens look drawn for the position before.", "bank (off_by_one), RESV",
        least_tokens=2,
    ),
    FaultEntry(
        "greedy_verify", "A5", "Sampled requests are verified by argmax.",
        "sgl-project/sglang 21275, 31214, 32922, 39253", "No diversity at all; every greedy test passes.",
        "bank (argmax_leak)",
    ),
    FaultEntry(
        "accept_iff_argmax", "A5b", "A draft is accepted exactly if it is the target's likeliest token.",
        "sgl-project/sglang 31214", "Too many likeliest tokens.", "ACC, bank (argmax_leak)",
    ),
    FaultEntry(
        "accept_if_equal", "A5c",
        "A draft is accepted if a draw from the target equals it; otherwise the target is drawn from again.",
        "a classic of exact-match implementations", "The drafted token is too frequent.", "ACC, bank (over_rejection)",
        kinds=DENSE,
    ),
    FaultEntry(
        "uniform_zero", "A7", "The uniforms of the acceptance test are all zero, so every possible draft is accepted.",
        "vllm-project/vllm-ascend 13730, 13766", "Acceptance is exactly 1; the output is the draft's.",
        "bank (draft_leak), ACC",
    ),
    FaultEntry(
        "drafts_unjudged", "A7b", "One draft token in ten is accepted unjudged.",
        "vllm-project/vllm-ascend 13730", "A lean to the draft, spread thin.", "bank (draft_leak), RESV",
    ),
    FaultEntry(
        "one_hot_accept_dense_residual", "A9a",
        "Drafts are accepted as if they were certain, and recovered with the draft row.",
        "vllm-project/vllm 40149", "Acceptance too low; tokens that the draft likes are too rare.",
        "ACC, bank (over_rejection)", kinds=DENSE,
    ),
    FaultEntry(
        "dense_accept_one_hot_residual", "A9b",
        "Drafts are accepted by the draft row, and recovered as if they had been certain.",
        "vllm-project/vllm 40149", "Recovered tokens that no residual can give.", "RES, RESV, bank (wrong_residual)",
        kinds=DENSE,
    ),
    FaultEntry(
        "resample_from_target", "A11", "A rejected position is drawn from the target row instead of the residual.",
        "a classic of textbook implementations, without a public number",
        "A small shift to tokens that the draft likes; a recovered token may equal the rejected one.",
        "RESV, bank (wrong_residual)",
    ),
    FaultEntry(
        "residual_argmax", "A11b", "A rejected position gets the residual's likeliest token.",
        "a classic of textbook implementations", "Recovered tokens lack diversity.", "RES, bank (argmax_leak)",
    ),
    FaultEntry(
        "typical_acceptance", "A12", "A draft is accepted if its target probability is above min(.09, .3 exp(-entropy)).",
        "FasterDecoding/Medusa; vllm-project/vllm 5131", "Acceptance is higher than the distributions allow.",
        "ACC, bank (typical_acceptance)",
    ),
    FaultEntry(
        "lenient_acceptance", "A12b", "A draft is accepted unjudged if its target probability is above .1.",
        "vllm-project/vllm 5131", "Likely drafts are too frequent.", "ACC, bank (typical_acceptance)",
    ),
    FaultEntry(
        "generous_acceptance", "A12c", "Every acceptance probability is a tenth too high.",
        "sgl-project/sglang `--speculative-accept-threshold-single` below 1", "A slight lean to the draft.", "ACC",
    ),
    FaultEntry(
        "unguarded_residual", "A13", "A residual without mass gives token 0.",
        "vllm-project/vllm 53029", "Token 0 where draft and target agree.", "none", seen_by=(), kinds=DENSE,
        blind="a rejection has probability 0 where the residual has no mass, so only rounding ever triggers it",
    ),
    FaultEntry(
        "bonus_temperature", "A20", "The bonus token is drawn at 1.25 times the temperature.",
        "vllm-project/vllm 9834", "Tokens after a full acceptance are too varied.", "bank (bonus_temperature), BONUS",
    ),
    FaultEntry(
        "bonus_from_draft", "A20b", "The bonus token is drawn from the draft's last row.",
        "vllm-project/vllm 9834", "Tokens after a full acceptance look out of place.", "bank (draft_leak, off_by_one), BONUS",
        kinds=DENSE,
    ),
    FaultEntry(
        "requests_from_draft", "A21", "In one request of fifty every draft is accepted unjudged.",
        "vllm-project/vllm 53912 (a stale cache entry gives whole bad answers)", "A few whole answers are the draft's.",
        "bank (draft_requests), ACC",
    ),
    FaultEntry(
        "requests_from_draft_rare", "A21b", "As `requests_from_draft`, in one request of a hundred.",
        "vllm-project/vllm 53912", "A few whole answers are the draft's.", "bank (draft_requests), ACC",
    ),
    FaultEntry(
        "requests_shifted", "A21c", "In one request of a hundred every target row but a round's first is the one before it.",
        "huggingface/transformers 28166", "A few whole answers are garbled.", "bank (off_by_one_requests)", least_tokens=2,
    ),
)  # fmt: skip

RANDOM: tuple[FaultEntry, ...] = (
    FaultEntry(
        "seed_reset", "F37", "Every request draws with the same seed.",
        "vllm-project/vllm 6038", "Each answer alone is right; answers resemble each other.", "XREQ, PIT (reused_randomness)",
    ),
    FaultEntry(
        "batch_order_draws", "F37b", "Draws are keyed by the request's row in the batch instead of by the request.",
        "vllm-project/vllm 6038", "As F37, between requests that had the same row.", "PIT (reused_randomness), slowly",
        needs=frozenset({Need.BATCH}),
    ),
    FaultEntry(
        "swapped_draws", "F35", "The drawn token of one row is given to the next row of the batch.",
        "vllm-project/vllm 9441", "Fine alone, garbage in a batch.", "bank", needs=frozenset({Need.BATCH}),
    ),
    FaultEntry(
        "accept_uniform_reused", "F39", "A rejected position is drawn with the uniform that rejected the draft.",
        "vllm-project/vllm 10863", "Recovered tokens do not fall evenly over the residual.", "RES, PIT (reused_randomness)",
    ),
    FaultEntry(
        "draft_uniform_reused", "F39b", "A draft is judged with the uniform that it was drawn with.",
        "vllm-project/vllm 52522", "Accepted tokens lean to low ids.", "PIT (reused_randomness), ACC", kinds=DENSE,
    ),
    FaultEntry(
        "shared_noise", "F39c", "Draft and recovered token are drawn by one and the same Gumbel noise.",
        "vllm-project/vllm 47386, 54282", "Recovered tokens avoid what the draft nearly chose.", "RES, bank (shared_noise)",
        kinds=DENSE,
    ),
)  # fmt: skip
