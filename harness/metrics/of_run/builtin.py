"""Our metrics of a whole run: a row each, and above the table what computes them.

Each function gives (n,) float64 values without NaN, none where the run cannot tell: of windows, of requests, or one of
the run.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from harness.api import RunMetric
from harness.data.lists import Floats, first, last, lists, number
from harness.metrics.measure import cached_share, metrics, succeeded
from harness.metrics.quantiles import quantile

if TYPE_CHECKING:
    from harness.api import RunTables

WINDOW_S = 60.0
"""As long as the windows in which the burstiness of traces is counted."""
WORKING_S = 300.0
"""As long as providers keep the prompts of an agent that pauses."""


def kv_swing(run: RunTables) -> Floats:
    """(windows,): the last window is left out where it is not whole, unless it is the only one."""
    ends: dict[tuple[int, int], tuple[float, float]] = {}  # (window, replica): fewest and most free blocks
    for steps in run.steps():
        window = ((number(steps, "start_s") - run.since_s) // WINDOW_S).astype(np.int64)
        keys, group = np.unique((window << 32) + steps["replica"].to_numpy(), return_inverse=True)
        fewest, most = np.full(len(keys), np.inf), np.full(len(keys), -np.inf)
        np.minimum.at(fewest, group, number(steps, "free_blocks"))
        np.maximum.at(most, group, number(steps, "free_blocks"))
        for key, low, high in zip(keys.tolist(), fewest.tolist(), most.tolist(), strict=True):
            place = divmod(key, 1 << 32)
            before = ends.get(place, (low, high))
            ends[place] = (min(before[0], low), max(before[1], high))
    last = max((window for window, _ in ends), default=0)
    found = [high - low for (window, _), (low, high) in sorted(ends.items()) if window < max(1, last)]
    return np.array(found) / run.kv_blocks if run.kv_blocks else np.empty(0)


def straggler_tail(run: RunTables) -> Floats:
    """(1,): of the requests that ended well."""
    ok = run.requests["status"].to_numpy() == "ok"
    end_s = np.sort(last(lists(run.requests, "token_s"))[ok])
    end_s = end_s[np.isfinite(end_s)]
    if not len(end_s):
        return np.empty(0)
    makespan_s = end_s[-1] - number(run.requests, "scheduled_s")[ok].min()
    most_s = end_s[math.ceil(0.9 * len(end_s)) - 1]
    return np.array([(end_s[-1] - most_s) / makespan_s]) if makespan_s > 0 else np.empty(0)


def tail_waste(run: RunTables) -> Floats:
    """(1,): over all replicas, from the first step to the end of the last."""
    begun_s, ended_s, used_s = math.inf, -math.inf, 0.0
    slots: dict[int, float] = {}
    before: dict[int, Floats] = {}  # replica: start, end and sequences of its last step so far
    for steps in run.steps():
        rows = np.stack([number(steps, name) for name in ("start_s", "end_s", "running")])  # (3, steps)
        replicas = steps["replica"].to_numpy()
        for replica in np.unique(replicas).tolist():
            mine = np.concatenate([before.get(replica, np.empty((3, 0))), rows[:, replicas == replica]], axis=1)
            start_s, end_s, running = mine
            until_s = np.minimum(end_s[:-1], start_s[1:])  # the next step of a pipeline starts before this one ends
            used_s += float((running[:-1] * (until_s - start_s[:-1])).sum())
            begun_s, ended_s = min(begun_s, start_s[0]), max(ended_s, end_s.max())
            slots[replica] = max(slots.get(replica, 0.0), running.max())
            before[replica] = mine[:, -1:]
    used_s += sum(float((row[2] * (row[1] - row[0])).sum()) for row in before.values())
    slots_s = sum(slots.values()) * (ended_s - begun_s)
    return np.array([1 - used_s / slots_s]) if slots and slots_s > 0 else np.empty(0)


def adaptivity(run: RunTables) -> Floats:
    """(1,): none for fewer than three requests, and where all are equal."""
    ok = run.requests["status"].to_numpy() == "ok"
    e2e_s = (last(lists(run.requests, "token_s")) - number(run.requests, "scheduled_s"))[ok]
    difficulty, time = _ranks(number(run.requests, "output_tokens_asked")[ok]), _ranks(e2e_s)
    if len(e2e_s) < 3 or not np.ptp(difficulty) or not np.ptp(time):
        return np.empty(0)
    return np.array([np.corrcoef(difficulty, time)[0, 1]])


def _ranks(values: Floats) -> Floats:
    """(n,) ranks from 1, equal values their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean: Floats = np.cumsum(counts) - (counts - 1) / 2
    return mean[place]


def ttft_answer(run: RunTables) -> Floats:
    """(requests,): of those that ended well, reasoned, and gave an answer."""
    if run.http is None:
        return np.empty(0)
    first_s, due_s = first(lists(run.requests, "token_s")), number(run.requests, "scheduled_s")
    content_s, reasoning = np.full(len(due_s), np.nan), np.zeros(len(due_s))
    at = {request: row for row, request in enumerate(run.requests["request_id"].to_pylist())}
    rows = [(row, at[request]) for row, request in enumerate(run.http["request_id"].to_pylist()) if request in at]
    if rows:
        seen, of = np.array(rows).T
        content_s[of] = number(run.http, "first_content_s")[seen]
        reasoning[of] = np.nan_to_num(number(run.http, "reasoning_tokens")[seen])
    ok = run.requests["status"].to_numpy() == "ok"
    found: Floats = (content_s - due_s)[ok & (content_s >= first_s) & ((reasoning > 0) | (content_s > first_s))]
    return found


def energy(run: RunTables) -> Floats:
    """(1,): J per output token of all requests."""
    tokens, busy_ns = int(run.requests["output_tokens"].to_numpy().sum()), np.zeros(len(run.step_w), np.int64)
    for steps in run.steps() if len(busy_ns) else ():  # whole nanoseconds: sums do not depend on the pieces
        replicas = np.minimum(steps["replica"].to_numpy(), len(busy_ns) - 1)
        np.add.at(
            busy_ns, replicas, np.round((number(steps, "end_s") - number(steps, "start_s")) * 1e9).astype(np.int64)
        )
    used_j = float(busy_ns @ np.asarray(run.step_w, float)) / 1e9
    return np.array([used_j / tokens]) if used_j and tokens else np.empty(0)


def cache_found(run: RunTables) -> Floats:
    """(1,): of all prompts whose answer says how much of them was cached; none where no prompt names blocks."""
    if next(run.prompts(), None) is None:
        return np.empty(0)
    share = cached_share(run.requests)
    return np.empty(0) if share is None else np.array([share])


def cache_best(run: RunTables) -> Floats:
    """(1,): of the prompts that are measured; those of the warm-up came before."""
    seen: set[int] = set()
    found = tokens = 0
    for prompt in run.prompts():
        blocks = prompt.blocks.tolist()
        hits = sum(1 for _ in takewhile(seen.__contains__, blocks))
        if prompt.measured:
            found += min(hits * prompt.block_tokens, prompt.tokens)
            tokens += prompt.tokens
        seen.update(blocks[hits:])
    return np.array([found / tokens]) if tokens else np.empty(0)


def working_set(run: RunTables) -> Floats:
    """(windows,): the last window is left out where it is not whole, unless it is the only one."""
    windows = groupby(
        (prompt for prompt in run.prompts() if prompt.measured),
        lambda prompt: int((prompt.sent_s - run.since_s) // WORKING_S),
    )
    found = []
    for _, prompts in windows:
        blocks: dict[int, list[np.ndarray]] = {}  # by their tokens
        for prompt in prompts:
            blocks.setdefault(prompt.block_tokens, []).append(prompt.blocks)
        found.append(sum(size * float(len(np.unique(np.concatenate(ids)))) for size, ids in blocks.items()))
    return np.array(found[:-1] or found)


def _prompt_tps(run: RunTables, *, cached: bool) -> Floats:
    """(1,): between the first and the last scheduled time; none where no prompt names blocks or no answer tells."""
    scheduled_s = number(run.requests, "scheduled_s")
    found, counted = number(run.requests, "cached_tokens"), number(run.requests, "prompt_tokens_server")
    tokens = np.where(np.isnan(counted), number(run.requests, "prompt_tokens"), counted)
    known = np.isfinite(found)
    if not known.any() or np.ptp(scheduled_s) <= 0 or next(run.prompts(), None) is None:
        return np.empty(0)
    wanted = found[known] if cached else tokens[known] - found[known]
    return np.array([wanted.sum() / np.ptp(scheduled_s)])


def slow_decile(run: RunTables) -> Floats:
    """(1,): of requests of sessions that ended well."""
    in_sessions = np.isfinite(number(run.requests, "session"))
    tpot_s = metrics()["tpot"].of(run.requests.filter(pa.array(in_sessions & succeeded(run.requests))))
    tpot_s = tpot_s[np.isfinite(tpot_s) & (tpot_s > 0)]
    return np.array([1 / quantile(tpot_s, 0.9)]) if len(tpot_s) else np.empty(0)


def session_time(run: RunTables) -> Floats:
    """(sessions,) of which the first and the last request were seen."""
    table = run.requests.filter(pa.array(np.isfinite(number(run.requests, "session"))))
    if not len(table):
        return np.empty(0)
    _, begins, group = np.unique(number(table, "session"), return_index=True, return_inverse=True)
    due_s, turn, lasts_s = number(table, "scheduled_s"), number(table, "turn"), metrics()["task"].of(table)
    ended_s = np.fmax(last(lists(table, "token_s")), due_s)
    order = np.lexsort((due_s, group))
    later = np.diff(group[order]) == 0
    pause_s = (due_s[order][1:] - ended_s[order][:-1])[later]
    first_turn, end_s = np.full(len(begins), np.inf), np.full(len(begins), -np.inf)
    np.minimum.at(first_turn, group, turn)
    np.maximum.at(end_s, group, ended_s)
    over = end_s + pause_s.max(initial=0.0) < due_s.max()  # a longer pause than any that was seen: nothing follows
    found: Floats = lasts_s[begins]
    return found[(first_turn == 0) & over & np.isfinite(found)] if later.any() else np.empty(0)


# fmt: off
ROWS: tuple[RunMetric, ...] = (
    RunMetric(
        name="kv_swing", title="KV swing", unit="share", place=0, of=kv_swing, in_text=False,
        about="""
        How far the use of KV memory rises and falls within a minute (share of the memory of a replica, per window).

        Source: the fluctuating memory of reasoning models in lqinfdim/RLMServing (ICLR 2026); the window is ours.

        (most - least blocks in use) / blocks, as seen at the steps of each whole window of 60 s of each replica, or of
        a shorter run as a whole. The coefficient of variation of these is their standard deviation over their mean.
        """,
    ),
    RunMetric(
        name="straggler_tail", title="straggler tail", unit="share", place=1, of=straggler_tail, in_text=False,
        about="""
        How long the last tenth of the requests takes (share of the run).

        Source: the straggler requests of reasoning models in lqinfdim/RLMServing (ICLR 2026).

        Time from when 90% of the requests that ended well have ended to when all have, over the time from the first
        scheduled one. Requests that arrive over time end over time: compare runs of equal arrivals.
        """,
    ),
    RunMetric(
        name="tail_waste", title="tail waste", unit="share", place=2, of=tail_waste, in_text=False,
        about="""
        How much of the batch stands empty (share of slots times seconds).

        Source: the idle slots behind stragglers in lqinfdim/RLMServing (ICLR 2026).

        Idle slot-time over all slot-time, from the first step to the end of the last. A replica has as many slots as
        sequences ever ran on it at once.
        """,
    ),
    RunMetric(
        name="adaptivity", title="adaptivity", unit="correlation", better="higher", place=3, of=adaptivity,
        in_text=False,
        about="""
        Whether the time of a request follows its difficulty (rank correlation, -1 to 1).

        Source: the running time of reasoning models, adaptive to difficulty, in lqinfdim/RLMServing (ICLR 2026).

        Spearman's correlation of requested output tokens and E2E over the requests that ended well. The requested
        tokens stand for the difficulty, which no table holds.
        """,
    ),
    RunMetric(
        name="ttft_answer", title="TTFT (answer)", unit="s", place=4, of=ttft_answer,
        about="""
        Time to the first token of the answer itself, after the reasoning (seconds per request).

        Source: the second time to first token of a reasoning model in lqinfdim/RLMServing (ICLR 2026).

        First text of the answer minus `scheduled_s`, of the requests to a remote server that streams reasoning apart or
        counts it; never less than TTFT.
        """,
    ),
    RunMetric(
        name="energy", title="energy at most (J per output token)", unit="J", place=5, of=energy,
        about="""
        What the GPUs use while steps run, at most (joules per output token).

        Source: the makers' limits of power per GPU, named by `bench explain h100`; a GPU that waits for memory uses
        less, and what all use between steps is left out.

        Sum over the steps of their time times the limit of the GPUs that work on them (a stage of a pipeline works on a
        step at a time), over the output tokens of all requests. None where the limit is unknown.
        """,
    ),
    RunMetric(
        name="cache_found", title="prompt tokens found in the cache", unit="share", better="higher", place=6,
        of=cache_found,
        about="""
        How much of the prompts the server had in its cache (share of their tokens).

        Source: `cached_tokens` in the usage of OpenAI's API, or what the prefix cache of bench's own backends found.

        Cached tokens over prompt tokens, of the answers that tell both. Only where prompts have blocks in common.
        """,
    ),
    RunMetric(
        name="cache_best", title="prompt tokens that came before", unit="share", better="higher", place=7,
        of=cache_best,
        about="""
        How much of the prompts a cache with room for everything would have found (share of their tokens).

        Source: the theoretical hit rate of Mooncake (FAST 2025, section 3) and of the corpora of agents.

        Leading blocks of each prompt that a request sent earlier had, times the tokens of a block, over prompt tokens.
        """,
    ),
    RunMetric(
        name="working_set", title="working set", unit="tokens", place=8, of=working_set,
        about="""
        How many different tokens the prompts of five minutes have (tokens, per window).

        Source: P. J. Denning, The working set model for program behavior, 1968; the window is ours.

        Different blocks of the prompts sent within each whole window of 300 s, or of a shorter run as a whole, times
        the tokens of a block. A cache smaller than this loses prompts of agents that pause for less.
        """,
    ),
    RunMetric(
        name="new_prompt_tps", title="new prompt tokens/s", unit="tokens/s", better="higher", place=9,
        of=partial(_prompt_tps, cached=False),
        about="""
        How many tokens of prompts the server computes (tokens per second).

        Source: the uncached input tokens of the prices of endpoints, which cost more than the cached ones.

        Prompt tokens less those found in the cache, of the answers that tell, over the time from the first scheduled
        request to the last. Only where prompts have blocks in common.
        """,
    ),
    RunMetric(
        name="cached_prompt_tps", title="cached prompt tokens/s", unit="tokens/s", better="higher", place=10,
        of=partial(_prompt_tps, cached=True),
        about="""
        How many tokens of prompts the server finds in its cache (tokens per second).

        Source: as `new_prompt_tps`.

        Prompt tokens found in the cache, of the answers that tell, over the same time.
        """,
    ),
    RunMetric(
        name="slow_decile", title="slowest decile (tokens/s per user)", unit="tokens/s", better="higher", place=11,
        of=slow_decile,
        about="""
        Tokens per second that nine tenths of the requests of sessions reach (tokens per second).

        Source: interactivity of InferenceX, at the slowest decile of the requests.

        1 / p90 of TPOT over the requests of sessions that ended well, as the bound p90:tpot has it.
        """,
    ),
    RunMetric(
        name="session_time", title="session time", unit="s", place=12, of=session_time,
        about="""
        How long whole sessions take, thinking included (seconds per session).

        Source: the task of an agent, as in JITServe (UIUC-MLSys/JITServe).

        From when the first request is due to the last token, as the metric `task`. Only sessions seen from their first
        request on, and after whose last answer the run went on for longer than the longest pause within a session; so
        where pauses are long, long sessions are missing.
        """,
    ),
)
# fmt: on
