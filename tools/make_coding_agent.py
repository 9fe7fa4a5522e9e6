"""Computes what `workloads/sessions/coding_agent.py` knows of recorded sessions: quantiles and shares, no rows.

python tools/make_coding_agent.py FOLDER_OF_WEKA_SESSIONS
"""

import sys
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr

from workloads import traces
from workloads.sessions.coding_agent import FULL_TOKENS, RANKS


class Turns(NamedTuple):
    """Pairs of a turn and the next one of the session's own agent: rows of the trace."""

    before: np.ndarray
    after: np.ndarray
    lost: np.ndarray  # blocks of the prompt before that the next one does not begin with
    named: np.ndarray  # blocks of the prompt before


def turns(trace: traces.Trace) -> Turns:
    """All turns of the sessions' own agents that follow another one, without those that waited for sub-agents."""
    table = trace.table
    own = ~np.asarray(table["agent"].is_valid())
    joined = np.asarray(table["joins"].combine_chunks().value_lengths()) > 0
    after = np.flatnonzero(own & ~joined & np.asarray(table["parent"].is_valid()))
    before = np.asarray(table["parent"].fill_null(0))[after]
    lists = table["prefix_ids"].combine_chunks()
    starts, items = lists.offsets.to_numpy(), lists.values.to_numpy()
    named = np.diff(starts)[before]
    lost = []
    for one, other in zip(before.tolist(), after.tolist(), strict=True):
        a, b = items[starts[one] : starts[one + 1]], items[starts[other] : starts[other + 1]]
        size = min(len(a), len(b))
        differ = np.flatnonzero(a[:size] != b[:size])
        lost.append(len(a) - (int(differ[0]) if len(differ) else size))
    return Turns(before, after, np.array(lost), named)


def new_and_answer(trace: traces.Trace) -> tuple[np.ndarray, np.ndarray]:
    """(N,) new tokens of the turns whose prompt goes on from the one before, at least 1, and (N,) of their answers."""
    prompt, output = (np.asarray(trace.table[name]) for name in ("prompt_tokens", "output_tokens"))
    found = turns(trace)
    on = found.lost <= 1
    before, after = found.before[on], found.after[on]
    return np.maximum(prompt[after] - prompt[before] - output[before], 1), output[after]


def figures(trace: traces.Trace) -> dict[str, Any]:
    """The constants of the module, by name."""
    table = trace.table
    prompt, delay_s = np.asarray(table["prompt_tokens"]), np.asarray(table["delay_s"])
    own = ~np.asarray(table["agent"].is_valid())
    session = np.asarray(table["session"])
    found = turns(trace)
    again, ratio = found.lost > found.named / 2, prompt[found.after] / prompt[found.before]
    full = (prompt[found.before] >= FULL_TOKENS[0]) & (prompt[found.before] < FULL_TOKENS[1])
    timed = np.asarray(table["api_s"].is_valid())[found.before]
    thought_s = delay_s[found.after][timed]
    _, first = np.unique(session, return_index=True)
    return {
        "TURNS": _quantiles(np.bincount(session[own]), 0),
        "FIRST_TOKENS": _quantiles(prompt[first], 0),
        "THINK_S": _quantiles(thought_s, 1),
        "AGAIN": _quantiles(ratio[again & ~full], 3),
        "FULL": _quantiles(ratio[again & full], 3),
        "AGAIN_SHARE": round(float(again[~full].mean()), 4),
        "FULL_SHARE": round(float(again[full].mean()), 4),
        "FIRST_AND_TURNS": round(float(spearmanr(prompt[first], np.bincount(session[own])).statistic), 2),
        "COMMON_TOKENS": int(np.median(np.asarray(table["common_tokens"])[first])),
    }


def _quantiles(values: np.ndarray, digits: int) -> tuple[float, ...]:
    found = np.round(np.quantile(values, RANKS), digits)
    return tuple(int(v) if digits == 0 else float(v) for v in found)


if __name__ == "__main__":
    for name, value in figures(traces.read(sys.argv[1])).items():
        sys.stdout.write(f"{name} = {value}\n")
