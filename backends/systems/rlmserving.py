"""RLMServing: reasoning models are not served like chat: memory that rises and falls, stragglers, two first tokens.

Source: RLMServing, ICLR 2026; lqinfdim/RLMServing. It claims these differences by figures of its own traces of GSM8K,
MATH-500, AIME and GPQA. `--workload reasoning` has traffic of that form.
"""

import math

import numpy as np
import pyarrow as pa

from harness.data.lists import Floats, last, lists, number

WINDOW_S = 60.0
"""As long as the windows in which the burstiness of traces is counted; the source names none."""


def kv_swing(steps: pa.Table, blocks: int) -> Floats:
    """Return how far the use of the KV memory of a replica rises and falls within a minute: (minutes x replicas,).

    Most less fewest blocks in use over all blocks, at the steps of each whole minute, or of a shorter run.
    """
    minute = number(steps, "start_s") // WINDOW_S
    free = steps.append_column("minute", pa.array(minute)).group_by(["minute", "replica"])
    ends = free.aggregate([("free_blocks", "max"), ("free_blocks", "min")]).sort_by("minute")
    complete = ends["minute"].to_numpy() < max(1, minute.max(initial=0.0))
    swing: Floats = (number(ends, "free_blocks_max") - number(ends, "free_blocks_min"))[complete] / blocks
    return swing


def straggler_tail(requests: pa.Table) -> float:
    """Return how long the last tenth of the requests that ended well takes, as a share of the time of all."""
    ok = requests["status"].to_numpy() == "ok"
    end_s = np.sort(last(lists(requests, "token_s"))[ok])
    most_s = end_s[math.ceil(0.9 * len(end_s)) - 1]
    return float((end_s[-1] - most_s) / (end_s[-1] - number(requests, "scheduled_s")[ok].min()))


def adaptivity(requests: pa.Table) -> float:
    """Return Spearman's correlation of requested output tokens, which stand for the difficulty, and E2E."""
    ok = requests["status"].to_numpy() == "ok"
    e2e_s = (last(lists(requests, "token_s")) - number(requests, "scheduled_s"))[ok]
    return float(np.corrcoef(_ranks(number(requests, "output_tokens_asked")[ok]), _ranks(e2e_s))[0, 1])


def _ranks(values: Floats) -> Floats:
    """Return (n,) ranks from 1, equal values their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean: Floats = np.cumsum(counts) - (counts - 1) / 2
    return mean[place]
