"""Computes the quantiles of the lengths `burstgpt` from the histograms and the joint table of the BurstGPT paper.

    python tools/make_lengths_burstgpt.py DATA_FOLDER    writes workloads/lengths/figures/burstgpt_conversation.json

Figure 7 counts tokens in bins of 5; inside a bin all counts are taken as equally likely (in the first bin from 1 on: a
request of 0 tokens is a failure). Figure 10 gives 8 x 30 cells of request by response; their ranks are spread evenly
over the deciles that they touch, and the tilt of the copula compensates for the lost rank correlation.
"""

import csv
import json
import sys
from pathlib import Path

import numpy as np

from make_lengths import FIGURES, one_line_lists
from workloads.lengths._empirical import side_of, tilt_of

NAME = "burstgpt_conversation"
TEXTS = {
    "preparation": "ChatGPT conversation requests of the first two months with fewer than 2,045 tokens on either side "
    "(longer ones are not in the published histogram); read off the figures of the paper, exact to a bin of 5 tokens",
    "tokenizer": "that of the OpenAI service (GPT-3.5)",
    "source": "BurstGPT, arXiv 2401.17644v5, figures 7 and 10 (HPMLL/BurstGPT)",
    "licence": "CC-BY-4.0 (data of HPMLL/BurstGPT)",
}


def main(data: Path) -> None:
    """Write the figures."""
    text = json.dumps(figures(data), indent=1, sort_keys=True)
    (FIGURES / f"{NAME}.json").write_text(one_line_lists(text) + "\n", encoding="utf-8")


def figures(data: Path) -> dict[str, object]:
    """Parameters of the sampler, and its provenance."""
    folder = data / "traces" / "burstgpt" / "paper_figures"
    summary = json.loads((data / "lengths" / "burstgpt1_chatgpt_conversation_hist.json").read_text())
    prompts, outputs = (_spread(folder / "fig7_chatgpt_conversation_token_histogram.csv", f"{side}_count")
                        for side in ("request", "response"))  # fmt: skip
    sides = {"prompt": side_of(prompts), "output": side_of(outputs)}
    deciles = np.round(_deciles(np.array(summary["joint"]["table"], float)), 1).tolist()
    spearman = summary["joint"]["spearman_of_binned_table"]
    return {
        **TEXTS,
        "rows": summary["prompt"]["n"],
        "max_total_tokens": None,
        "spearman": spearman,
        "rank_deciles": deciles,
        "tilt": tilt_of(sides, deciles, None, spearman),
        **sides,
    }


def _spread(path: Path, column: str) -> np.ndarray:
    """(5 N,) token counts, five times as many as the histogram counts, so that each is spread evenly over its bin."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(int(r["token_bin_start"]), int(r["token_bin_end"]), int(r[column])) for r in csv.DictReader(file)]
    parts = [np.resize(np.arange(max(1, start), end), 5 * count) for start, end, count in rows]
    return np.concatenate(parts)


def _deciles(table: np.ndarray) -> np.ndarray:
    """(10, 10) counts by rank decile of a table of counts, each cell spread evenly over its ranks."""
    return np.asarray(_overlap(table.sum(axis=1)).T @ table @ _overlap(table.sum(axis=0)))


def _overlap(counts: np.ndarray) -> np.ndarray:
    """(bins, 10) fraction of each bin's ranks in each decile."""
    edges = np.concatenate([[0.0], np.cumsum(counts)]) / counts.sum()
    start = np.arange(10) / 10
    shared = np.minimum(edges[1:, None], start + 0.1) - np.maximum(edges[:-1, None], start)
    return np.asarray(np.clip(shared, 0, None) / np.diff(edges)[:, None])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
