"""One legal policy as text, and edits that break it; `golden_policy_errors.txt` holds each one's complaint, word for word."""

from __future__ import annotations

LEGAL = """\
route: math
subject:
  engine: own
  target: SmolLM2-135M-Instruct
  dtype: bfloat16
  drafter: {name: ngram, num_speculative_tokens: 4}
shadow:
  batch_size: 8
gates:
  margin: 0.02
  gap_rate: 5e-3
stages:
  - name: shadow
    weight: 0 %
  - name: canary-5
    weight: 5 %
    bake: 10m
    live: waived
    why: no users
  - name: full
    weight: 100 %
limits:
  fresh: 30s
"""

# (old, new): what an edit replaces, and by what
EDITS: list[tuple[str, str]] = [
    ("margin: 0.02", "margin: 0"),
    ("margin: 0.02", "margin: -0.01"),
    ("margin: 0.02", "margin: .nan"),
    ("margin: 0.02", "margin: .inf"),
    ("margin: 0.02", "margin: 1e999"),
    ("margin: 0.02", "margin: '0.02'"),
    ("margin: 0.02", "margin: small"),
    ("margin: 0.02", "margin: true"),
    ("margin: 0.02", "margin:"),
    ("margin: 0.02", "margin: [0.02]"),
    ("margin: 0.02", "margn: 0.02"),
    ("margin: 0.02", "acceptance: 0.5"),
    ("margin: 0.02", "margin: 0.02\n  margin: 0.01"),
    ("gap_rate: 5e-3", "gap_rate: 1e-5"),
    ("gap_rate: 5e-3", "gap_rate: 1"),
    ("num_speculative_tokens: 4", "num_speculative_tokens: 0"),
    ("num_speculative_tokens: 4", "num_speculative_tokens: 4.0"),
    ("num_speculative_tokens: 4", "num_speculative_tokens: 33"),
    (", num_speculative_tokens: 4", ""),
    ("name: ngram,", "name: ngrams,"),
    ("name: ngram,", "name: draft_model,"),
    ("name: ngram,", "name: ngram, model: models/draft,"),
    ("engine: own", "engine: vllm"),
    ("dtype: bfloat16", "dtype: float16"),
    ("dtype: bfloat16", "dtype: bfloat16\n  device: gpu"),
    ("dtype: bfloat16", "dtype: bfloat16\n  device: cuda:x"),
    ("dtype: bfloat16", "dtype: bfloat16\n  graphs: always"),
    ("target: SmolLM2-135M-Instruct", "target: ''"),
    ("route: math", "route: Math Route"),
    ("route: math", "rout: math"),
    ("route: math\n", ""),
    ("weight: 5 %", "weight: 5.005 %"),
    ("weight: 5 %", "weight: 0.05"),
    ("weight: 5 %", "weight: 100.01 %"),
    ("weight: 5 %", "weight: 0 %"),
    ("bake: 10m", "bake: 10"),
    ("bake: 10m", "bake: 10 minutes"),
    ("bake: 10m", "bake: -5s"),
    ("fresh: 30s", "fresh: 0s"),
    ("    live: waived\n    why: no users\n", ""),
    ("    why: no users\n", ""),
    ("live: waived\n", "live: [speed]\n"),
    ("live: waived\n    why: no users", "live: [speeed]"),
    ("live: waived\n    why: no users", "live: []"),
    ("live: waived\n    why: no users", "live: none"),
    ("name: full", "name: fully"),
    ("name: canary-5", "name: Canary"),
    ("batch_size: 8", "batch_size: 8\n  batchsize: 8"),
    ("shadow:\n  batch_size: 8", "shadow: 8"),
    ("stages:", "stages: []\nold_stages:"),
    ("limits:", "limits: &l\n  <<: *l"),
    ("route: math", "route: !!python/name:os.system math"),
    ("route: math", "route: math\n---\nroute: other"),
    ("route: math", 'route: "math'),
    ("route: math", "\troute: math"),
    ("limits:\n  fresh: 30s", "limits: [fresh"),
    ("limits:", "match: {strata: [warm]}\nlimits:"),
    ("limits:", "match: {strata: []}\nlimits:"),
    ("limits:", "match: {endpoint: [completions]}\nlimits:"),
    ("limits:", "match: {stream: sometimes}\nlimits:"),
    ("limits:", "match: {strata: [greedy], max_temperature: 1}\nlimits:"),
    ("limits:", "match: {max_temperature: .nan}\nlimits:"),
    ("limits:", "notify: [{webhook: oncall, events: [kills]}]\nlimits:"),
    ("limits:", "notify: [{webhook: oncall}, {webhook: oncall}]\nlimits:"),
    ("limits:", "notify: [{webhook: 'https://example.org'}]\nlimits:"),
    ("limits:", "on_lost: hold\nlimits:"),
    ("limits:", "max_stale: 0s\nlimits:"),
    ("limits:", "limits:\n  cooldown_factor: 0.5"),
    ("limits:", "limits:\n  max_attempts: 0"),
    ("batch_size: 8", "batch_size: 8\n  requests_per_day: 0"),
    ("batch_size: 8", "batch_size: 8\n  schedule: {cron: 0 3 * *}"),
    ("batch_size: 8", "batch_size: 8\n  schedule:\n    cron: 0 25 * * *"),
    ("batch_size: 8", "batch_size: 8\n  schedule: {cron: 0 0 30 2 *}"),
    ("batch_size: 8", "batch_size: 8\n  schedule: {cron: 0 3 * * *, timezone: Mars}"),
    ("batch_size: 8", "batch_size: 8\n  schedule: {timezone: UTC}"),
    ("batch_size: 8", "batch_size: 8\n  schedule: {cron: 0 3 * * *, max_minutes: 0}"),
    ("batch_size: 8", "batch_size: 8\n  schedule: {cron: 0 3 * * *, max_request: 5}"),
    ("margin: 0.02", "strata: {sampled: {mode: observe, why: rare}}"),
    ("margin: 0.02", "strata: {sampled: {mode: required, why: rare}}"),
    ("margin: 0.02", "strata: {hot: {mode: warn, why: rare}}"),
    ("weight: 0 %", "weight: 0 %\n    approval: {within: 1h}"),
    ("weight: 100 %", "weight: 100 %\n    approval: {within: 0s}"),
    ("weight: 100 %", "weight: 100 %\n    approval: {within: 1h, by_author: maybe}"),
]
