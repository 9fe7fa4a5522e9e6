"""Our metrics of a whole run: a row each, and above the table what computes them.

Each function gives (n,) float64 values without NaN, none where the run cannot tell: of windows, of requests, or one of
the run.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.api import CacheHit, RunMetric
from harness.data.lists import Floats, first, last, lists, number
from harness.metrics.measure import cached_share, metrics, succeeded
from harness.metrics.quantiles import quantile

if TYPE_CHECKING:
    from harness.api import RunTables

WORKING_S = 300.0
"""As long as providers keep the prompts of an agent that pauses."""


def ttft_answer(run: RunTables) -> Floats:
    """(requests,): of those that ended well, reasoned, and gave an answer."""
    if run.http is None:
        return np.empty(0)
    first_s, due_s = first(lists(run.requests, "token_s")), number(run.requests, "scheduled_s")
    content_s, reasoning = np.full(len(due_s), np.nan), np.zeros(len(due_s))
    by_id = {request: row for row, request in enumerate(run.requests["request_id"].to_pylist())}
    rows = [(row, by_id[request]) for row, request in enumerate(run.http["request_id"].to_pylist()) if request in by_id]
    if rows:
        seen, request_rows = np.array(rows).T
        content_s[request_rows] = number(run.http, "first_content_s")[seen]
        reasoning[request_rows] = np.nan_to_num(number(run.http, "reasoning_tokens")[seen])
    ok = run.requests["status"].to_numpy() == "ok"
    ttft_s: Floats = (content_s - due_s)[ok & (content_s >= first_s) & ((reasoning > 0) | (content_s > first_s))]
    return ttft_s


def energy(run: RunTables) -> Floats:
    """(1,): J per output token of all requests."""
    tokens, busy_ns = int(run.requests["output_tokens"].to_numpy().sum()), np.zeros(len(run.step_w), np.int64)
    # whole nanoseconds: sums do not depend on the pieces
    for steps in run.steps("replica", "start_s", "end_s") if len(busy_ns) else ():
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


def cache_best(run: RunTables, *, answers: bool = True) -> Floats:
    """(1,): of the prompts that are measured; those of the warm-up came before. With the `answers` or without them."""
    full: set[int] = set()  # blocks that came before
    begun: dict[int, int] = {}  # tokens at the head of others that did
    hit_tokens = tokens = 0
    for prompt in run.prompts():
        size, blocks = prompt.block_tokens, prompt.blocks.tolist()
        hits = sum(1 for _ in takewhile(full.__contains__, blocks))
        if prompt.measured:
            head = begun.get(blocks[hits], 0) if hits < len(blocks) else 0
            hit_tokens += min(hits * size + head, prompt.tokens)
            tokens += prompt.tokens
        filled, rest = divmod(prompt.tokens + (prompt.answer_tokens if answers and prompt.goes_on else 0), size)
        full.update(blocks[hits:filled])
        for block in blocks[filled : filled + 1]:
            begun[block] = max(begun.get(block, 0), rest)
    return np.array([hit_tokens / tokens]) if tokens else np.empty(0)


def cache_prompts(run: RunTables) -> Floats:
    """(1,), as `cache_best`; none where no answer is part of a later prompt."""
    goes_on = any(prompt.goes_on for prompt in run.prompts())
    return cache_best(run, answers=False) if goes_on else np.empty(0)


def working_set(run: RunTables) -> Floats:
    """(windows,): the last window is left out where it is not whole, unless it is the only one."""
    windows = groupby(
        (prompt for prompt in run.prompts() if prompt.measured),
        lambda prompt: int((prompt.sent_s - run.since_s) // WORKING_S),
    )
    window_tokens = []
    for _, prompts in windows:
        blocks: dict[int, list[np.ndarray]] = {}  # by their tokens
        for prompt in prompts:
            of_prompt = prompt.blocks[: -(-prompt.tokens // prompt.block_tokens)]  # without those of its answer
            blocks.setdefault(prompt.block_tokens, []).append(of_prompt)
        window_tokens.append(sum(size * float(len(np.unique(np.concatenate(ids)))) for size, ids in blocks.items()))
    return np.array(window_tokens[:-1] or window_tokens)


def _prompt_tps(run: RunTables, *, cached: bool) -> Floats:
    """(1,): between the first and the last scheduled time; none where no prompt names blocks or no answer tells."""
    hit_tokens = number(run.requests, "cached_tokens")
    reported = np.isfinite(hit_tokens)
    if not reported.any() or (span_s := np.ptp(number(run.requests, "scheduled_s"))) <= 0:
        return np.empty(0)
    if next(run.prompts(), None) is None:
        return np.empty(0)
    counted = number(run.requests, "prompt_tokens_server")
    tokens = np.where(np.isnan(counted), number(run.requests, "prompt_tokens"), counted)
    selected = hit_tokens[reported] if cached else tokens[reported] - hit_tokens[reported]
    return np.array([selected.sum() / span_s])


def tier_hits(run: RunTables) -> Floats:
    """(1,): of all tiers together; none where no prompt was looked up."""
    shares = [tier["hit_tokens"] / tier["queried_tokens"] for tier in run.tiers if tier["queried_tokens"]]
    return np.array([sum(shares)]) if shares else np.empty(0)


def tier_wait(run: RunTables) -> Floats:
    """(1,): the mean over the loads of all tiers."""
    loads = sum(tier["loads"] for tier in run.tiers)
    return np.array([sum(tier["wait_s"] for tier in run.tiers) / loads]) if loads else np.empty(0)


def answered_by_cache(run: RunTables, *, kind: CacheHit | None = None) -> Floats:
    """(1,); none where no response cache has answered."""
    hits = run.requests["cache_hit"]
    counted = pc.is_valid(hits) if kind is None else pc.equal(hits, kind)
    return np.empty(0) if hits.null_count == len(hits) else np.array([pc.sum(counted).as_py() or 0]) / len(hits)


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
    session_s: Floats = lasts_s[begins]
    return session_s[(first_turn == 0) & over & np.isfinite(session_s)] if later.any() else np.empty(0)


# fmt: off
ROWS: tuple[RunMetric, ...] = (
    RunMetric(
        name="ttft_answer", title="TTFT (answer)", unit="s", place=0, of=ttft_answer,
        about="""
        Time to the first token of the answer itself, after the reasoning (seconds per request).

        Source: the second time to first token of a reasoning model in lqinfdim/RLMServing (ICLR 2026).

        First text of the answer minus `scheduled_s`, of the requests to a remote server that streams reasoning apart or
        counts it; never less than TTFT.
        """,
    ),
    RunMetric(
        name="energy", title="energy at most (J per output token)", unit="J", place=1, of=energy,
        about="""
        What the GPUs use while steps run, at most (joules per output token).

        Source: the makers' limits of power per GPU, named by `bench explain h100`; a GPU that waits for memory uses
        less, and what all use between steps is left out.

        Sum over the steps of their time times the limit of the GPUs that work on them (a stage of a pipeline works on a
        step at a time), over the output tokens of all requests. None where the limit is unknown.
        """,
    ),
    RunMetric(
        name="cache_found", title="prompt tokens found in the cache", unit="share", better="higher", place=2,
        of=cache_found,
        about="""
        How much of the prompts the server had in its cache (share of their tokens).

        Source: `cached_tokens` in the usage of OpenAI's API, or what the prefix cache of bench's own backends found.

        Cached tokens over prompt tokens, of the answers that tell both. Only where prompts have blocks in common.
        """,
    ),
    RunMetric(
        name="cache_best", title="prompt tokens that came before", unit="share", better="higher", place=3,
        of=cache_best,
        about="""
        How much of the prompts a cache with room for everything would have found (share of their tokens).

        Source: the theoretical hit rate of Mooncake (FAST 2025, section 3) and of the corpora of agents.

        Leading tokens of each prompt that a request sent earlier had, or its answer, over prompt tokens. Blocks are
        those that the workload names; of one that a prompt or an answer leaves in part that part counts.
        """,
    ),
    RunMetric(
        name="cache_prompts", title="prompt tokens in earlier prompts", unit="share", better="higher", place=4,
        of=cache_prompts,
        about="""
        How much of the prompts a cache with room for everything would have found if answers were not kept (share).

        Source: as `cache_best`; the difference is what follow-ups repeat of the answers of the system.

        Leading tokens of each prompt that the prompt of a request sent earlier had, over prompt tokens.
        """,
    ),
    RunMetric(
        name="working_set", title="working set", unit="tokens", place=5, of=working_set,
        about="""
        How many different tokens the prompts of five minutes have (tokens, per window).

        Source: P. J. Denning, The working set model for program behavior, 1968; the window is ours.

        Different blocks of the prompts sent within each whole window of 300 s, or of a shorter run as a whole, times
        the tokens of a block. A cache smaller than this loses prompts of agents that pause for less.
        """,
    ),
    RunMetric(
        name="new_prompt_tps", title="new prompt tokens/s", unit="tokens/s", better="higher", place=6,
        of=partial(_prompt_tps, cached=False),
        about="""
        How many tokens of prompts the server computes (tokens per second).

        Source: the uncached input tokens of the prices of endpoints, which cost more than the cached ones.

        Prompt tokens less those found in the cache, of the answers that tell, over the time from the first scheduled
        request to the last. Only where prompts have blocks in common.
        """,
    ),
    RunMetric(
        name="cached_prompt_tps", title="cached prompt tokens/s", unit="tokens/s", better="higher", place=7,
        of=partial(_prompt_tps, cached=True),
        about="""
        How many tokens of prompts the server finds in its cache (tokens per second).

        Source: as `new_prompt_tps`.

        Prompt tokens found in the cache, of the answers that tell, over the same time.
        """,
    ),
    RunMetric(
        name="tier_hits", title="prompt tokens found in tiers", unit="share", better="higher", place=10,
        of=tier_hits,
        about="""
        How much of the prompts was loaded from tiers below GPU memory (share of their tokens, whole run).

        Source: the hit rate of a pool of KV, as in Mooncake (FAST 2025), of host memory, SSD and pool together.

        Tokens found in a tier over those of the prompts, each at its first lookup.
        """,
    ),
    RunMetric(
        name="tier_wait", title="load from a tier", unit="s", place=11, of=tier_wait,
        about="""
        How long blocks are on their way from a tier to a GPU (seconds per load, whole run).

        Source: the time of a transfer that shares its link with others; 1 load is what 1 request gets of 1 tier.

        Seconds from when memory is set aside for the blocks until they have arrived, over the loads.
        """,
    ),
    RunMetric(
        name="response_hits", title="answered by the response cache", unit="share", better="higher", place=8,
        of=answered_by_cache,
        about="Requests that a response cache answered, not the backend (share of the requests).\n\nSource: hit rates "
        "in Category-Aware Semantic Caching (arXiv 2510.26835).\n\nThey count as requests and tokens of the run, but "
        "are no capacity of the backend.",
    ),
    RunMetric(
        name="wrong_hits", title="answers to another question", unit="share", place=8,
        of=partial(answered_by_cache, kind="wrong"),
        about="Requests that got the answer to another question from the response cache (share of the requests).\n\n"
        "Source: false positives, as above; the workload tells which questions are alike.",
    ),
    RunMetric(
        name="stale_hits", title="answers out of date", unit="share", place=8,
        of=partial(answered_by_cache, kind="stale"),
        about="Requests that got an answer from the response cache that had ceased to hold (share of the requests).\n\n"
        "Source: stale answers, as above.",
    ),
    RunMetric(
        name="slow_decile", title="slowest decile (tokens/s per user)", unit="tokens/s", better="higher", place=8,
        of=slow_decile,
        about="""
        Tokens per second that nine tenths of the requests of sessions reach (tokens per second).

        Source: interactivity of InferenceX, at the slowest decile of the requests.

        1 / p90 of TPOT over the requests of sessions that ended well, as the bound p90:tpot has it.
        """,
    ),
    RunMetric(
        name="session_time", title="session time", unit="s", place=9, of=session_time,
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
