"""Makes the figures of the empirical lengths (`figures/*.json`) from a folder of raw length lists.

    python -m workloads.lengths._make_figures DATA_FOLDER

Quantiles, rank correlation and the table of rank deciles are those of `DATA_FOLDER/lengths/*.json`; the means
of the segments between quantiles come from the raw rows in `DATA_FOLDER/traces/`. LongBench is prepared here,
the way DistServe does it.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.lengths._empirical import EDGES, Copula, Marginal

FIGURES = Path(__file__).with_name("figures")
CUT_TOKENS = np.arange(1900, 2049)  # DistServe: random.randint(1900, 2048), every value equally likely
KEEP_TOKENS = 2040  # DistServe: context plus answer stay within this


@dataclass(frozen=True, slots=True)
class Source:
    """Where one list comes from, and what is told about it."""

    name: str
    rows: str
    columns: tuple[str, str]
    summary: str | None
    texts: Mapping[str, str]
    max_total_tokens: int | None = None


_SHAREGPT_LICENCE = (
    "lengths: Apache-2.0 (the repository they are from); the ShareGPT texts behind them are of unclear licence"
)
SOURCES = (
    Source(
        "sharegpt_distserve",
        "sharegpt/distserve_sharegpt_opt_lengths.csv",
        ("prompt_len", "output_len"),
        "sharegpt_distserve_opt",
        {
            "preparation": "distserve: conversations with at least 3 turns; a random number of leading turns is the "
            "prompt, the next turn the answer; prompt + answer < 2,048 tokens; 1,600 requests of a real run (the "
            "paper gives means 755.5 / 200.3 for the whole set)",
            "tokenizer": "facebook/opt-13b (GPT-2 BPE and one BOS)",
            "source": "LLMServe/DistServe @ 20a1633ed6f2, simdistserve/benchmarks/alignment/data-ground-truth/"
            "opt-13b-sharegpt/distserve-c21d12-1600-16.exp",
            "licence": _SHAREGPT_LICENCE,
        },
        max_total_tokens=2047,
    ),
    Source(
        "sharegpt_first_turn",
        "sharegpt/sharegpt.csv",
        ("ContextTokens", "GeneratedTokens"),
        "sharegpt_first_turn_longchat",
        {
            "preparation": "first-turn: first human turn and first answer of each conversation of "
            "ShareGPT_V3_unfiltered_cleaned_split; no filter by length (the longest prompt has 241,402 tokens)",
            "tokenizer": "lmsys/longchat-13b-16k (Llama SentencePiece, BOS counted)",
            "source": "efeslab/Nanoflow @ d6b381e58110, datasets/traces/sharegpt.csv",
            "licence": _SHAREGPT_LICENCE,
        },
    ),
    Source(
        "sharegpt_multi_turn_8k",
        "sharegpt/sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
        ("num_prefill_tokens", "num_decode_tokens"),
        "sharegpt_multiturn_8k_llama2",
        {
            "preparation": "multi-turn-8k: conversations with their history as the prompt, prompt + answer at most "
            "8,192 tokens (the ShareGPT row of the Sarathi-Serve paper)",
            "tokenizer": "Llama-2",
            "source": "project-etalon/etalon @ d5f18de15a22, data/processed_traces/"
            "sharegpt_8k_filtered_stats_llama2_tokenizer.csv",
            "licence": _SHAREGPT_LICENCE,
        },
        max_total_tokens=8192,
    ),
    Source(
        "humaneval",
        "humaneval/humaneval_opt_lengths.csv",
        ("prompt_tokens", "solution_tokens"),
        "humaneval_opt",
        {
            "preparation": "prompt and canonical solution of the 164 problems, as DistServe uses them (it repeats "
            "them ten times)",
            "tokenizer": "facebook/opt (GPT-2 BPE and one BOS on each side)",
            "source": "openai/human-eval @ 6d43fb980f9f, data/HumanEval.jsonl.gz",
            "licence": "MIT",
        },
    ),
    Source(
        "longbench",
        "longbench/longbench_subset_lengths.csv",
        ("context_tokens", "answer_tokens"),
        None,
        {
            "preparation": "DistServe's: context cut to min(2,040 - answer, a random 1,900..2,048) tokens, the "
            "first reference answer is the output; only 3 of the 21 tasks (multi_news, multifieldqa_zh, "
            "passage_retrieval_zh, 200 rows each): not the whole of LongBench, whose means the paper gives as "
            "1,738.3 / 90.7",
            "tokenizer": "facebook/opt (GPT-2 BPE and one BOS)",
            "source": "Zefan-Cai/KVCache-Factory @ c97f9d706d63, data/LongBench (3 task files)",
            "licence": "MIT (the repositories); the data sets inside LongBench have licences of their own",
        },
        max_total_tokens=2047,
    ),
)


def main(data: Path) -> None:
    """Write one JSON file per list."""
    FIGURES.mkdir(exist_ok=True)
    for source in SOURCES:
        text = json.dumps(figures(source, data), indent=1, sort_keys=True)
        (FIGURES / f"{source.name}.json").write_text(_one_line_lists(text) + "\n", encoding="utf-8")
        sys.stdout.write(f"{source.name}\n")


def figures(source: Source, data: Path) -> dict[str, object]:
    """Everything the sampler of one list needs, and its provenance."""
    prompt, output, rows = _lengths(source, data)
    summary = json.loads((data / "lengths" / f"{source.summary}.json").read_text()) if source.summary else None
    joint = summary["joint"] if summary else _joint(prompt, output)
    deciles = joint["rank_decile_table_rows_prompt_cols_output"]
    sides = {
        "prompt": _side(prompt, summary and summary["prompt"]["quantiles_0_100"]),
        "output": _side(output, summary and summary["output"]["quantiles_0_100"]),
    }
    return {
        **source.texts,
        "rows": rows,
        "max_total_tokens": source.max_total_tokens,
        "spearman": joint["spearman"],
        "rank_deciles": deciles,
        "tilt": _tilt(sides, deciles, source.max_total_tokens, joint["spearman"]),
        **sides,
    }


def _tilt(sides: Mapping[str, Any], deciles: list[list[float]], limit: int | None, spearman: float) -> float:
    """The tilt of the copula that gives the rank correlation of the list, by bisection."""
    prompt, output = Marginal.from_figures(sides["prompt"]), Marginal.from_figures(sides["output"])
    low, high = -50.0, 50.0
    for _ in range(40):
        middle = (low + high) / 2
        reached = Copula.fit(deciles, prompt, output, limit, middle).spearman(prompt, output)
        low, high = (middle, high) if reached < spearman else (low, middle)
    return round((low + high) / 2, 6)


def _lengths(source: Source, data: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """(N,) prompts and (N,) outputs, and how many rows the list has."""
    with (data / "traces" / source.rows).open(encoding="utf-8", newline="") as file:
        pairs = [(int(row[source.columns[0]]), int(row[source.columns[1]])) for row in csv.DictReader(file)]
    prompt, output = np.array(pairs).T
    if source.name == "longbench":
        cut = np.minimum((KEEP_TOKENS - output)[:, None], CUT_TOKENS)  # (N, 149)
        return np.minimum(prompt[:, None], cut).ravel(), np.repeat(output, len(CUT_TOKENS)), len(pairs)
    return prompt, output, len(pairs)


def _side(values: np.ndarray, stored: list[int] | None) -> dict[str, Any]:
    """Quantiles (inverted empirical CDF) and the means between them, of prompts or of outputs."""
    ordered = np.sort(values)
    knots = np.quantile(ordered, EDGES, method="inverted_cdf").astype(int)
    quantiles = np.delete(knots, 100)
    if stored is not None and quantiles.tolist() != stored:
        raise ValueError("the raw rows and the stored quantiles disagree")
    return {
        "mean": round(float(ordered.mean()), 3),
        "quantiles": quantiles.tolist(),
        "quantile_99_9": int(knots[100]),
        "segment_means": np.round(_segment_means(ordered, knots), 6).tolist(),
    }


def _segment_means(ordered: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """(101,) mean between neighbouring knots, moved as little as needed into what the sampler can draw there.

    A segment holds the whole numbers above its lower knot up to its upper one, so that the CDF at a stored
    quantile is exact; what that moves the means is taken back from the other segments in proportion to their room.
    """
    sums = np.interp(EDGES * len(ordered), np.arange(len(ordered) + 1), np.concatenate([[0], np.cumsum(ordered)]))
    weights = np.diff(EDGES)
    raw = np.diff(sums) / (weights * len(ordered))
    low, high = np.minimum(knots[:-1] + 1, knots[1:]), knots[1:]
    low[0] = knots[0]
    means = np.clip(raw, low, high)
    excess = float(weights @ (means - raw))
    room = means - low if excess > 0 else high - means
    means = means - excess * room / float(weights @ room)
    if not (np.all(means >= low - 1e-9) and np.all(means <= high + 1e-9)):
        raise ValueError("no sampler on these quantiles has this mean")
    return np.asarray(np.clip(means, low, high))


def _joint(prompt: np.ndarray, output: np.ndarray) -> dict[str, Any]:
    """Spearman's rho and the 10 x 10 table of rank deciles, where equal values share their ranks evenly."""
    from scipy.stats import spearmanr

    rows, cols = _decile_shares(prompt), _decile_shares(output)
    return {
        "spearman": round(float(spearmanr(prompt, output).statistic), 4),
        "rank_decile_table_rows_prompt_cols_output": np.round(rows.T @ cols / len(prompt) * 1000, 3).tolist(),
    }


def _decile_shares(values: np.ndarray) -> np.ndarray:
    """(N, 10) how much of each value's rank interval lies in each decile."""
    ordered = np.sort(values)
    low = np.searchsorted(ordered, values, "left") / len(values)
    high = np.searchsorted(ordered, values, "right") / len(values)
    start = np.arange(10) / 10
    overlap = np.minimum(high[:, None], start + 0.1) - np.maximum(low[:, None], start)
    return np.asarray(np.clip(overlap, 0, None) / (high - low)[:, None])


def _one_line_lists(text: str) -> str:
    import re

    return re.sub(r"\[[^\[\]]*\]", lambda found: " ".join(found.group().split()), text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
