"""Catalogue groups B and E: parameters that are dropped or stand behind another prefix, and log-probabilities told wrongly."""

from __future__ import annotations

from canary.domain.catalogue.entry import ALL, ROWS, FaultEntry, Need

PARAMETERS: tuple[FaultEntry, ...] = (
    FaultEntry(
        "temperature_ignored", "B20", "Verify rows are processed at temperature 1.",
        "vllm-project/vllm 9834", "Too varied where the request is cold.", "processed-row check (row_outliers)",
        needs=frozenset({Need.TEMPERATURE}), seen_by=ROWS,
    ),
    FaultEntry(
        "filters_ignored", "B20b", "Verify rows are processed without top-k and top-p.",
        "vllm-project/vllm 10198; sgl-project/sglang 10617", "Tokens outside the nucleus, only where something was drafted.",
        "processed-row check (row_outliers)", needs=frozenset({Need.FILTERS}), seen_by=ROWS,
    ),
    FaultEntry(
        "bonus_parameters_ignored", "B15", "The row after the last draft is processed without temperature and filters.",
        "vllm-project/vllm 38202, 42744; sgl-project/sglang 11555", "Odd tokens after full acceptance.",
        "processed-row check (row_outliers)", needs=frozenset({Need.SHAPED}), seen_by=ROWS,
    ),
    FaultEntry(
        "min_p_ignored", "B15b", "Verify rows are processed without min-p.",
        "sgl-project/sglang 10617; vllm-project/vllm 42744", "Unlikely tokens, only where something was drafted.",
        "processed-row check (row_outliers)", needs=frozenset({Need.MIN_P}), seen_by=ROWS,
    ),
    FaultEntry(
        "bias_on_bonus_only", "B15c", "Logit bias and bad words reach the row after the last draft alone.",
        "vllm-project/vllm 42744; sgl-project/sglang 11555", "Forbidden tokens, at drafted positions only.",
        "processed-row check (row_outliers), greedy gap", strata=ALL, needs=frozenset({Need.BIASED}), seen_by=ROWS,
    ),
    FaultEntry(
        "penalties_ignored", "B14", "Verify rows have no repetition, presence and frequency penalty.",
        "vllm-project/vllm 18902, 19482", "More repetition, only in requests with penalties.",
        "processed-row check (row_outliers), greedy gap", strata=ALL, needs=frozenset({Need.PENALTIES}), seen_by=ROWS,
    ),
    FaultEntry(
        "penalties_frozen", "B22", "All rows of a round share the penalties of its first one: earlier drafts count for nothing.",
        "sgl-project/sglang 22049", "Tokens repeat within an accepted run.",
        "processed-row check (row_outliers), greedy gap", strata=ALL, needs=frozenset({Need.PENALTIES}), seen_by=ROWS,
    ),
    FaultEntry(
        "rejected_drafts_counted", "B17", "Rejected drafts stay in the history that penalties count.",
        "vmlx-swift 357", "Words vanish that were never said, more with every rejection.",
        "processed-row check (row_outliers), greedy gap", strata=ALL, needs=frozenset({Need.PENALTIES}), seen_by=ROWS,
    ),
    FaultEntry(
        "min_tokens_short", "B19", "What ends an answer is banned for one token too few.",
        "vllm-project/vllm 26317, 41768", "Answers that end one token before they may.",
        "replay of the end: failed arms; processed-row check (row_outliers)", strata=ALL,
        needs=frozenset({Need.MIN_TOKENS}), seen_by=("errors", *ROWS),
    ),
)  # fmt: skip

TOLD: tuple[FaultEntry, ...] = (
    FaultEntry(
        "logprobs_zero", "E32", "The log-probability of every emitted token is told as 0.",
        "vllm-project/vllm 17876", "Exact zeros.", "told against kept rows: failed arms", seen_by=("errors",), strata=ALL,
        needs=frozenset({Need.LOGPROBS}),
    ),
    FaultEntry(
        "logprobs_of_next_row", "E34", "Log-probabilities are read from the row after the token's own.",
        "vllm-project/vllm 34497, 44727", "They are not those of a second scoring.", "told against kept rows: failed arms",
        seen_by=("errors",), strata=ALL, needs=frozenset({Need.LOGPROBS}),
    ),
)  # fmt: skip
