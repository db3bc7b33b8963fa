"""Catalogue groups C, D, G, H, I, J and K: broken texts, ends, caches, ids, counts, lost acceptance and speed."""

from __future__ import annotations

from canary.domain.catalogue.entry import ALL, ROWS, FaultEntry, Need

STRUCTURE: tuple[FaultEntry, ...] = (
    FaultEntry(
        "chunk_read_from_last_token", "C26", "Of a step's tokens only the last reaches the text: one a chunk was expected.",
        "vllm-project/vllm 41967, 42781, 55082", "The tokens are right and the text has holes: JSON and tool calls break.",
        "validity of structured answers", seen_by=("structured_validity",), strata=ALL, needs=frozenset({Need.STRUCTURED}),
    ),
)  # fmt: skip

ENDS: tuple[FaultEntry, ...] = (
    FaultEntry(
        "end_tested_on_last_only", "D27", "EOS and stop strings are looked for at the last token of a round only.",
        "huggingface/transformers 47912; LostRuins/koboldcpp 1276", "Text goes on after its end.",
        "replay of the end: failed arms", seen_by=("errors",), strata=ALL, needs=frozenset({Need.ENDS}),
    ),
    FaultEntry(
        "length_tested_first", "D28", "Where a round reaches the length limit, an earlier stop inside it is not looked for.",
        "sgl-project/sglang 31599, 33758", "`length` in place of `stop`, with tokens after the end.",
        "replay of the end: failed arms", seen_by=("errors",), strata=ALL, needs=frozenset({Need.ENDS}),
    ),
    FaultEntry(
        "drafts_leak_past_end", "D30", "Accepted drafts after a stop stay in the answer.",
        "openvinotoolkit/openvino.genai 1951; vllm-project/vllm 47616", "One to k tokens too many.",
        "replay of the end: failed arms", seen_by=("errors",), strata=ALL, needs=frozenset({Need.ENDS}),
    ),
)  # fmt: skip

CACHE: tuple[FaultEntry, ...] = (
    FaultEntry(
        "token_fed_twice", "G43", "After an accepted run its last token is fed again in place of the one that followed.",
        "vllm-project/vllm 40831; kekzl/imp 683", "Repeated words where rounds meet.", "row outliers, greedy gap", strata=ALL,
        seen_by=ROWS,
    ),
    FaultEntry(
        "short_crop", "G44", "After a rejection the cache is rolled back one token too far.",
        "huggingface/transformers 30042, 30068, 46741, 48280", "Wrong from the first rejection on.",
        "row outliers, greedy gap", strata=ALL, seen_by=ROWS,
    ),
    FaultEntry(
        "longest_length", "G48", "Rows of a batch take the longest row's cache length.",
        "eBay, batch speculative decoding done right (2510.22876)", "Exact alone, wrong in a batch.",
        "row outliers, greedy gap", strata=ALL, needs=frozenset({Need.BATCH}), seen_by=ROWS,
    ),
    FaultEntry(
        "rejected_kept", "G49", "Keys and values of rejected drafts stay visible.",
        "ggml-org/llama.cpp 19493", "Worse with every rejection.", "row outliers, greedy gap", strata=ALL, seen_by=ROWS,
    ),
    FaultEntry(
        "rejected_kept_sometimes", "G49b", "After one rejection in ten the rejected drafts' keys stay visible.",
        "ggml-org/llama.cpp 19493", "A growing share of answers is off.", "row outliers, greedy gap", strata=ALL,
        seen_by=ROWS,
    ),
    FaultEntry(
        "rejected_kept_late", "G44b", "From token 48 of an answer on, the rejected drafts' keys stay visible.",
        "huggingface/transformers 48280 (a window that is passed)", "Only long answers are wrong, and late.",
        "row outliers by position", strata=ALL, needs=frozenset({Need.LONG}), seen_by=ROWS,
    ),
)  # fmt: skip

IDS: tuple[FaultEntry, ...] = (
    FaultEntry(
        "nan_rows", "H50", "One verify row in about thirty is not a number.",
        "vllm-project/vllm 50183, 53029", "Requests fail.", "guard of the rows: failed arms", seen_by=("errors",), strata=ALL,
    ),
    FaultEntry(
        "permuted_draft_ids", "H52", "The drafter speaks another vocabulary: its ids mean other tokens.",
        "sgl-project/sglang 23838, 24051", "Acceptance is near 0; the output is right.", "acceptance",
        seen_by=("acceptance",), strata=ALL,
    ),
)  # fmt: skip

COUNTS: tuple[FaultEntry, ...] = (
    FaultEntry(
        "bonus_counted", "I56", "The token after the accepted drafts is counted as accepted.",
        "sgl-project/sglang 11572", "Acceptance above 1.", "identities: failed arms", seen_by=("errors",), strata=ALL,
    ),
    FaultEntry(
        "biased_counts", "I57", "Accepted and drafted tokens are both counted one too high.",
        "sgl-project/sglang 23530", "(accepted + 1) / (proposed + 1).", "identities: failed arms", seen_by=("errors",),
        strata=ALL,
    ),
    FaultEntry(
        "counted_past_end", "I58", "Accepted drafts after the end are counted though they were cut.",
        "vllm-project/vllm 56101", "More tokens accepted than emitted.", "identities: failed arms", seen_by=("errors",),
        strata=ALL, needs=frozenset({Need.ENDS}),
    ),
)  # fmt: skip

ECONOMY: tuple[FaultEntry, ...] = (
    FaultEntry(
        "draft_window_truncated", "J62", "The drafter sees only the last four tokens of the prompt.",
        "AEON 6; ggml-org/llama.cpp 23544", "Acceptance falls, most on long prompts.", "acceptance", seen_by=("acceptance",),
        strata=ALL,
    ),
    FaultEntry(
        "draft_misses_bonus", "J42", "After a full acceptance the drafter never sees the bonus token.",
        "vllm-project/vllm 5765, 9730", "Acceptance collapses after the first full acceptance.", "acceptance",
        seen_by=("acceptance",), strata=ALL,
    ),
    FaultEntry(
        "slow_draft", "K63", "Every proposal waits for 20 ms.",
        "vllm-project/vllm 27379, 39940, 49548", "The text is equal; time per token is worse.", "speed", seen_by=("speed",),
        strata=ALL,
    ),
    FaultEntry(
        "quadratic_lookup", "K63b", "Every proposal compares all pairs of positions of the text.",
        "vllm-project/vllm 27379; huggingface/transformers 32370", "Slower with every token of context.", "speed",
        seen_by=("speed",), strata=ALL,
    ),
)  # fmt: skip
