"""Whole sessions of a trace: chains of prompts, and figures of turns, contexts, kept prefixes, answers and pauses.

A trace without sessions, but with the names of blocks, has them by its prefix tree: a request follows the last one that
holds the deepest of its leading blocks that came before. No row is stored: laws are quantiles, in cells where one
number decides another. A session's own part in growth, answers and pauses is normal in their ranks, and correlated with
its turns and its first prompt (a Gaussian copula).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.data.lists import Floats, Ints, Mask
from harness.data.records import listed, places
from workloads.fit import _laws
from workloads.session_times import links_of
from workloads.trace_rows import alike, conversations, rows_of

if TYPE_CHECKING:
    from workloads.traces import Trace

LEAST_SESSIONS, LEAST_TURNS = 20, 100
"""Sessions of two turns or more, and turns after another one, below which nothing is fitted."""
LEAST_NAMED = 0.9
"""Of the prompts that name all of their blocks: in others it is unknown what the rest of a prompt shares."""
MOST_ROOTS = 100
BLOCK_TOKENS, MOST_NAMED = 16, 4_000_000
"""Of the blocks that are named where a trace names sessions only; of more than so many they are longer."""
SESSION = ("turns", "first", "growth", "output", "pause")
"""What is correlated between sessions."""
CONTINUES, EDITS, RESTARTS, COMPACTS = range(4)
"""A prompt that keeps the one before but for one block at most; that loses less than half of it; that loses more; that
is shorter than `SHORTER` of it, where that one was nearly the longest of its session (`FULL`)."""
SHORTER, FULL = 0.8, 0.75
TURNS = (2, 3, 5, 8, 12, 20, 40, 80, 160)
"""Edges of the cells of turns in which first prompts and growth are measured: first turns bring files, say."""
STEPS_S = (1.0, 0.1)
ON_STEPS = 0.9
"""Share of the pauses that lie on whole steps, from which on they are drawn in such steps."""
LEAST_SPREAD = 0.1
"""Standard deviation of the logarithms of pauses below which they are not parted into short and long ones."""
FROM_REQUESTS = "from request to request, so it holds the answer"

COMMON_SHARE = 0.01
"""Leading blocks of at least this share of the prompts (10 or more) belong to no session: a system prompt, say."""
COMMON_LEAST = 10


def measure(found: Chains | None, end_s: float | None) -> dict[str, Any] | None:
    """Plain data of the sessions; None where they are too few, or unknown. `end_s` is when the trace ends, None where
    sessions have clocks of their own: sessions that may have gone on after it count for what was seen of them.

    Laws are lists of quantiles. `turns`; `first_tokens` of first prompts, by turns; `growth` tokens from a prompt to
    the next one that keeps it, by its turn, and the rank correlation with the answer between; `limit_tokens` above
    which a session is compacted; `slip`: share of the prompts that keep all blocks but the last; `cuts`: shares of
    prompts that edit or restart the one before, by its tokens, of second prompts, and after a restart; `lost_blocks`
    of edits, `kept_blocks` of restarts and the share that keeps as many as the restart before; `size` beside the
    prompt before of edits, restarts and compactions; `output` tokens; `pause` s by what causes it, with what comes
    next; `answer_s` by output tokens; `common_tokens`; `roots` that sessions share; `agents` (`_agents`); `effects`
    of sessions and their `correlation`.
    """
    if found is None:
        return None
    prompt, output = (found.column(f"{side}_tokens").astype(np.int64) for side in ("prompt", "output"))
    begins, session, turn = found.begins, found.session, found.turn
    sizes = np.bincount(session)
    on = np.flatnonzero(~begins)
    filled = prompt // found.block_tokens
    if (sizes > 1).sum() < LEAST_SESSIONS or len(on) < LEAST_TURNS or (found.blocks >= filled).mean() < LEAST_NAMED:
        return None
    lost = np.maximum(filled[on - 1] - found.kept[on], 0)
    longest, size = np.maximum.reduceat(prompt, np.flatnonzero(begins)), prompt[on] / prompt[on - 1]
    kind = np.where(lost <= 1, CONTINUES, np.where(2 * lost < filled[on - 1], EDITS, RESTARTS))
    full = prompt[on - 1] > FULL * longest[session[on]]
    # Not behind another cut: a session that has just started anew is far from its longest prompt.
    kind[(size < SHORTER) & full & ~_after_restart(kind, begins[on - 1])] = COMPACTS
    cut = kind >= RESTARTS
    at_s = found.column("at_s")
    gap_s = at_s[on] - at_s[on - 1]
    left_s = np.full(len(found), np.inf) if end_s is None else end_s - at_s
    # what was seen counts for what was not: the longer a gap, the fewer turns came early enough before the end
    weight = 1 / (1 - np.searchsorted(np.sort(left_s), gap_s) / len(left_s))
    pause_s, pause_is = pauses(found)
    agents = None if found.side is None else _agents(found, found.side)
    requests = len(found) + (0 if agents is None else agents["chains"]["requests"])
    pause, pause_scores = _pauses(found, on, pause_s, weight)
    return {
        "sessions": len(sizes),
        "requests": requests,
        "found_by": "prefix tree" if found.found else "trace",
        "own_clocks": end_s is None,
        "rate_rps": None if not end_s else round(requests / end_s, 6),
        "block_tokens": found.block_tokens,
        "last_block_named": bool((found.blocks > filled).mean() > 0.5),
        "turns": _turns(turn, on, gap_s, weight, left_s),
        "largest_tokens": int(prompt.max()),
        "limit_tokens": _limits(longest, prompt[begins], np.unique(session[on][kind == COMPACTS])),
        "slip": round(float((lost[kind == CONTINUES] == 1).mean()), 4),
        "cuts": _cuts(kind, prompt[on - 1], _after_restart(kind, begins[on - 1]), begins[on - 1]),
        "lost_blocks": _law_or_none(lost[kind == EDITS]),
        "kept_blocks": _law_or_none(found.kept[on][cut]),
        "kept_again": _again(found.kept[on][cut], session[on][cut]),
        "size": [_law_or_none(size[kind == cut_kind], 4) for cut_kind in (EDITS, RESTARTS, COMPACTS)],
        "output": _laws.law(output, digits=0),
        "pause": pause,
        "pause_is": pause_is,
        "answer_s": _answers(found, output),
        "common_tokens": _law_or_none(found.column("common_tokens")[begins])
        if "common_tokens" in found.table.column_names
        else None,
        "roots": _roots(found),
        "agents": agents,
        **_effects(found, on[kind == CONTINUES], prompt, output, (pause_scores, session[on])),
    }


def _agents(found: Chains, side: Side) -> dict[str, Any] | None:
    """Figures of branches: their `chains` as of sessions, the chance that a session has any, by its turns (`sessions`),
    the share of its `turns` after which some begin beside the first, how many at once (`each`), how long after the
    answer (`begin_s`), the share of the prompt before that they keep, and the share for which the next turn waits; None
    where they are too few.
    """
    chains = measure(side.chains, None)
    if chains is None:
        return None
    heads, begins_s = np.flatnonzero(side.chains.begins), side.chains.column("at_s")[side.chains.begins]
    ended_s = found.column("at_s")[side.after]
    if "api_s" in found.table.column_names:
        ended_s = ended_s + np.nan_to_num(found.column("api_s")[side.after])
    turns, each = np.unique(side.after, return_counts=True)
    sizes = np.bincount(found.session)
    sessions = np.unique(found.session[turns])
    before, firsts = (of.prompts for of in (found, side.chains))
    kept = [
        alike(firsts[head], before[i]) / max(len(before[i]), 1)
        for head, i in zip(heads.tolist(), side.after.tolist(), strict=True)
    ]
    return {
        "chains": chains,
        "sessions": len(sessions) / len(found),
        "turns": (len(turns) - len(sessions)) / max(int(sizes[sessions].sum()) - len(sessions), 1),
        "each": _laws.law(each),
        "begin_s": _laws.law(np.maximum(begins_s - ended_s, 0.0)),
        "kept": _laws.law(np.array(kept)),
        "joined": round(float(side.joined.mean()), 4),
    }


def _effects(found: Chains, on: Ints, prompt: Ints, output: Ints, pause: tuple[Floats, Ints]) -> dict[str, Any]:
    """First prompts, growth of the prompts `on` that continue one, and how sessions differ in growth, answers and
    pauses.
    """
    session, turn, begins = found.session, found.turn[on].astype(np.float64), found.begins
    grown = (prompt[on] - prompt[on - 1]).astype(np.float64)
    growth = _laws.by_cells(turn, grown, _laws.wide_enough(turn, TURNS), 0)
    growth_scores = _laws.scores_in(np.searchsorted(growth["edges"], turn, side="right"), grown)
    scores = {"growth": (growth_scores, session[on]), "output": (_laws.normal_scores(output), session), "pause": pause}
    sizes = np.bincount(session)
    first_edges = _laws.wide_enough(sizes, TURNS)
    first_scores = _laws.scores_in(np.searchsorted(first_edges, sizes, side="right"), prompt[begins])
    means = [_laws.normal_scores(sizes), first_scores]
    effects, inside = {}, {}
    for name, (score, owner) in scores.items():
        effects[name], mean = _laws.by_session(score, owner, len(sizes))
        inside[name] = score - mean[owner]
        finite = np.isfinite(mean)
        mean[finite] = _laws.normal_scores(mean[finite])
        means.append(mean)
    return {
        "first_tokens": _laws.by_cells(sizes, prompt[begins], first_edges, 0),
        "growth": growth,
        "growth_with_answer": _correlated(inside["growth"], inside["output"][on - 1]),
        "effects": effects,
        "correlation": [[_correlated(series, other) for other in means] for series in means],
    }


def _correlated(one: Floats, other: Floats) -> float:
    """Pearson's correlation where both are known; 0 where one side does not vary."""
    finite = np.isfinite(one) & np.isfinite(other)
    one, other = one[finite], other[finite]
    spread = float(one.std() * other.std()) if len(one) else 0.0
    return round(float(np.cov(one, other, ddof=0)[0, 1]) / spread, 4) if spread > 0 else 0.0


def _law_or_none(values: npt.NDArray[Any], digits: int = 0) -> list[float] | None:
    return _laws.law(values, digits=digits) if len(values) else None


def _turns(turn: Ints, on: Ints, gap_s: Floats, weight: Floats, left_s: Floats) -> list[float]:
    """Law of the turns of a session, turn by turn from the share that has another one.

    A turn near the end of the trace counts for as much as the chance that its next one would still have been seen.
    Source of the weights: Robins and Rotnitzky, AIDS Epidemiology, 1992 (inverse probability of censoring).
    """
    order = np.argsort(gap_s)
    reached = np.concatenate([[0.0], np.cumsum(weight[order]) / weight.sum()])
    chance = reached[np.searchsorted(gap_s[order], left_s, side="right")]
    most = int(turn.max()) + 1
    went_on = np.bincount(turn[on] - 1, minlength=most)
    could = np.bincount(turn, chance, minlength=most)
    # Turn by turn, as the last turns of a trace are cut: a plain count of turns would take these for the end.
    stays = np.cumprod(np.minimum(went_on / np.maximum(could, 1e-9), 1.0))  # (T,) more than 1, 2, ... turns
    return _laws.counted(np.concatenate([[0.0], 1 - stays[:-1], [1.0]]))


def _after_restart(kind: Ints, first: Mask) -> Mask:
    """(n,) whether the prompt before was a restart or compaction itself; `first` says that it began its session."""
    return np.asarray(np.append(False, kind[:-1] >= RESTARTS) & ~first)


def _limits(longest: Ints, first: Ints, compacted: Ints) -> list[float]:
    """Law of the tokens above which a session is compacted, over sessions of any length.

    Sessions that end before are censored at their longest prompt, and those that begin with more tell nothing of
    less. What is left above the last one is never compacted. Source: Kaplan and Meier, JASA 53, 1958, with delayed
    entry.
    """
    events = np.zeros(len(longest), bool)
    events[compacted] = True
    tokens = np.unique(longest[events])
    stays, shares = 1.0, []
    for limit in tokens:
        at_risk = ((first <= limit) & (longest >= limit)).sum()
        shares.append(stays * (events & (longest == limit)).sum() / at_risk)
        stays -= shares[-1]
    return _laws.law(np.append(tokens, longest.max()), np.append(shares, stays + 1e-12), digits=0)


def _cuts(kind: Ints, tokens: Ints, again: Mask, second: Mask) -> dict[str, Any]:
    """Shares of edits and restarts by the tokens of the prompt before, of second prompts, and after a restart."""
    rows = kind != COMPACTS
    kind, tokens, again, second = kind[rows], tokens[rows], again[rows], second[rows]
    edges = _laws.edges_of(tokens.astype(np.float64))
    cells = np.searchsorted(edges, tokens, side="right")

    def shares(rows: Mask) -> list[float]:
        return [round(float(np.mean(kind[rows] == cut)), 5) if rows.any() else 0.0 for cut in (EDITS, RESTARTS)]

    by_cell = [shares((cells == i) & ~again & ~second) for i in range(len(edges) + 1)]
    return {"edges": edges.tolist(), "shares": by_cell, "second": shares(second), "after_restart": shares(again)}


def _again(kept: Ints, session: Ints) -> float:
    """Share of the restarts that keep as many blocks as the one before in their session."""
    same = session[1:] == session[:-1]
    return round(float(np.mean(kept[1:][same] == kept[:-1][same])), 4) if same.any() else 0.0


def pauses(found: Chains) -> tuple[Floats, str]:
    """(n,) seconds before the turns after another one, and from when they count."""
    on, names, at_s = np.flatnonzero(~found.begins), found.table.column_names, found.column("at_s")
    if "delay_s" in names:
        return found.column("delay_s")[on], "from the answers that a request waited for"
    if "api_s" in names:
        ended_s = at_s[on - 1] + np.nan_to_num(found.column("api_s")[on - 1])
        return np.maximum(at_s[on] - ended_s, 0.0), "from the answer before"
    return at_s[on] - at_s[on - 1], FROM_REQUESTS


def _pauses(found: Chains, on: Ints, pause_s: Floats, weight: Floats) -> tuple[dict[str, Any], Floats]:
    """Laws of the pauses before turns by what causes them, and the scores of the pauses."""
    cause = _causes(found, on, pause_s)
    session = found.session[on]
    causes, which = np.unique(cause, return_inverse=True)
    follows = session[1:] == session[:-1]
    parts = []
    for number, name in enumerate(causes.tolist()):
        rows = which == number
        after = np.bincount(which[1:][follows & rows[:-1]], minlength=len(causes)) + 1e-9
        parts.append({
            "cause": name, "share": round(float(weight[rows].sum() / weight.sum()), 4),
            "law": _laws.law(pause_s[rows], weight[rows]), "next": np.round(after / after.sum(), 4).tolist(),
        })  # fmt: skip
    off = [np.abs(pause_s / step - np.round(pause_s / step)) < 1e-3 for step in STEPS_S]
    step_s = next((step for step, on_it in zip(STEPS_S, off, strict=True) if on_it.mean() >= ON_STEPS), None)
    return {"step_s": step_s, "causes": parts}, _laws.scores_in(which, pause_s)


def _causes(found: Chains, on: Ints, pause_s: Floats) -> npt.NDArray[np.str_]:
    """(n,) names of what causes the pauses: what the trace names, else short and long ones, parted where their
    logarithms vary least on both sides. Source: Otsu, IEEE Transactions on Systems, Man, and Cybernetics 9, 1979.
    """
    if "cause" in found.table.column_names:
        return np.array(found.table["cause"].take(found.rows[on]).fill_null("unknown").to_pylist())
    logs = np.log1p(pause_s)
    if logs.std() < LEAST_SPREAD:
        return np.full(len(on), "any")
    tried = np.unique(np.quantile(logs, np.arange(1, 100) / 100))
    tried = tried[tried < logs.max()]
    cost = [sum(float(side.var()) * len(side) for side in (logs[logs <= cut], logs[logs > cut])) for cut in tried]
    return np.where(logs <= tried[int(np.argmin(cost))], "short", "long")


def _answers(found: Chains, output: Ints) -> dict[str, Any] | None:
    """Seconds that answers took, by their tokens; None where the trace does not tell."""
    if "api_s" not in found.table.column_names:
        return None
    api_s = found.column("api_s")
    timed = np.isfinite(api_s)
    tokens = output[timed].astype(np.float64)
    return _laws.by_cells(tokens, api_s[timed], _laws.edges_of(tokens)) if timed.sum() >= LEAST_TURNS else None


def _roots(found: Chains) -> list[dict[str, Any]]:
    """What first prompts begin with in common, most popular first: its share of the sessions, its blocks, and that as
    many blocks as `same` are those of root number `like`.
    """
    firsts = np.flatnonzero(found.begins)
    groups: dict[int, list[int]] = {}
    for i in firsts.tolist():
        if found.common[i]:
            groups.setdefault(int(found.prompts[i][found.common[i] - 1]), []).append(i)
    ranked = sorted(groups.values(), key=lambda rows: -len(rows))[:MOST_ROOTS]
    paths = [found.prompts[rows[0]][: found.common[rows[0]]] for rows in ranked]
    roots = []
    for number, (rows, path) in enumerate(zip(ranked, paths, strict=True)):
        same = [alike(path, other) for other in paths[:number]] or [0]
        closest = int(np.argmax(same))
        share = round(len(rows) / len(firsts), 5)
        roots.append({"share": share, "blocks": len(path), "like": closest, "same": same[closest]})
    return roots


class Side(NamedTuple):
    """Branches of sessions, of sub-agents say: the `chains` of their requests, after which request of the sessions each
    begins, and whether a later one of these waits for its last answer.
    """

    chains: Chains
    after: Ints
    joined: Mask


@dataclass(frozen=True, slots=True)
class Chains:
    """Requests of whole sessions (N,), session after session, in order of time in each; branches are apart, in `side`.

    `rows` are those of `table`, `begins` where a session starts, `kept` the leading blocks that the prompt before
    begins with (0 at a start), `common` those that sessions share. `found` tells sessions that the prefix tree
    made from those that the trace names.
    """

    table: pa.Table
    block_tokens: int
    rows: np.ndarray
    begins: np.ndarray
    kept: np.ndarray
    common: np.ndarray
    prompts: list[np.ndarray]
    found: bool
    side: Side | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> np.ndarray:
        """(N,) numbers of a column; NaN where it is null."""
        values = self.table[name].take(pa.array(self.rows))
        return np.asarray(values if not values.null_count else values.cast(pa.float64()).fill_null(np.nan))

    @property
    def session(self) -> np.ndarray:
        """(N,) number of the session of each row, from 0."""
        return np.asarray(np.cumsum(self.begins) - 1)

    @property
    def turn(self) -> np.ndarray:
        """(N,) number of each row in its session, from 0."""
        starts = np.flatnonzero(self.begins)
        return np.asarray(np.arange(len(self)) - starts[self.session])

    @property
    def blocks(self) -> np.ndarray:
        """(N,) blocks that each prompt names."""
        return np.array([len(prompt) for prompt in self.prompts], np.int64)


def with_blocks(trace: Trace) -> Trace:
    """The rows in sessions of a trace that names sessions and no blocks, with names of blocks.

    Each prompt is taken to begin with all of the prompt before it in its session, unless it is shorter and starts anew.
    A trace that names blocks, or fewer than half of whose rows are in sessions, stays as it is.
    """
    names = trace.table.column_names
    if "prefix_ids" in names or "session" not in names or trace.table["session"].null_count > len(trace) / 2:
        return trace
    trace = rows_of(trace, np.flatnonzero(np.asarray(trace.table["session"].is_valid())))
    session, prompt = conversations(trace.table)[0], np.asarray(trace.table["prompt_tokens"])
    size = BLOCK_TOKENS * max(1, int(prompt.sum()) // (BLOCK_TOKENS * MOST_NAMED))
    blocks = prompt // size
    order = np.argsort(session, kind="stable")
    begins = np.append(True, (np.diff(session[order]) > 0) | (np.diff(blocks[order]) < 0))
    most = np.maximum.reduceat(blocks[order], np.flatnonzero(begins))
    first = np.empty_like(blocks)
    first[order] = (np.cumsum(most) - most)[np.cumsum(begins) - 1]
    ids = listed(blocks, places(blocks) + np.repeat(first, blocks))
    return replace(trace, table=trace.table.append_column("prefix_ids", ids), block_tokens=size)


def chains_of(trace: Trace, *, prompts: bool = True) -> Chains | None:
    """The sessions of a trace; None where no prompt names blocks. Without `prompts` sessions that the trace names have
    no blocks, which are by far most of the memory.
    """
    table = trace.table
    if "prefix_ids" not in table.column_names:
        return None
    explicit = "session" in table.column_names and table["session"].null_count < len(table)
    ids = _numbered(table["prefix_ids"]) if prompts or not explicit else [np.zeros(0, np.int32)] * len(table)
    if not ids:
        return None
    if not explicit:
        common = _common(ids)
        return _chained(trace, ids, np.arange(len(ids)), _linked(ids, common), common, found=True)
    first, after, joined = branches(table)
    rows, inner = (np.flatnonzero(among) for among in (after[first] < 0, after[first] >= 0))
    main = _chained(trace, ids, rows, conversations(table)[0][rows], None, found=False)
    if not len(inner) or not prompts:
        return main
    side = _chained(trace, ids, inner, first[inner], None, found=False)
    place = np.zeros(len(table), np.int64)
    place[main.rows] = np.arange(len(main))
    heads = side.rows[side.begins]
    return replace(main, side=Side(side, place[after[heads]], joined[heads]))


def _chained(
    trace: Trace, ids: list[np.ndarray], rows: Ints, session: Ints, common: Ints | None, *, found: bool
) -> Chains:  # fmt: skip
    """Rows in order of time as chains, one for each session; `common` is by default what first prompts have."""
    _, first, session = np.unique(session, return_index=True, return_inverse=True)
    if common is None:
        common = _common([ids[row] for row in rows[first]])[session]
    order = np.argsort(session, kind="stable")
    rows, session = rows[order], session[order]
    begins = np.append(True, session[1:] != session[:-1])
    named = [ids[row] for row in rows]
    shared = [0 if new else alike(named[i], named[i - 1]) for i, new in enumerate(begins)]
    return Chains(trace.table, trace.block_tokens, rows, begins, np.array(shared), common[order], named, found)


def branches(table: pa.Table) -> tuple[Ints, Ints, Mask]:
    """(N,) the first row of the chain of each row; the row of the main chain after which the branch that begins with a
    row does, -1 for others; and whether the main chain waits for its last answer.

    A row goes on with a chain of its agent whose end it waits for, the main chain before others, or with the last one
    where it waits for nothing. A branch of a branch counts as one of where that began.
    """
    names, rows = table.column_names, len(table)
    after, joined = np.full(rows, -1), np.zeros(rows, bool)
    if "parent" not in names and "agent" not in names:
        return np.zeros(rows, np.int64), after, joined
    agent = table["agent"].to_pylist() if "agent" in names else [None] * rows
    first, last = list(range(rows)), list(range(rows))  # row of a chain, by its first one
    latest, links, sessions = dict[tuple[int, str | None], int](), links_of(table), conversations(table)[0].tolist()
    # the main chain begins with the first request of no agent, or of any
    main = {sessions[row]: row for row in sorted(range(rows - 1, -1, -1), key=lambda row: agent[row] is None)}
    for row, session in enumerate(sessions):
        root = main[session]
        waits = sorted(links.of(row).tolist(), key=lambda i: first[i])
        ends = [first[i] for i in waits if last[first[i]] == i]
        same = [begin for begin in ends if agent[begin] == agent[row]]
        if same or (not waits and (session, agent[row]) in latest):
            first[row] = same[0] if same else latest[session, agent[row]]
        elif row != root:
            before = first[waits[0]] if waits else root
            after[row] = after[before] if before != root else waits[0] if waits else last[root]
        last[first[row]], latest[session, agent[row]] = row, first[row]
        if first[row] == root:
            joined[[begin for begin in ends if begin != root]] = True
    return np.array(first), after, joined


def _numbered(lists: pa.ChunkedArray) -> list[np.ndarray]:
    """The blocks of each prompt as numbers from 0, in order of first use; nothing where none has any."""
    codes = pc.list_flatten(lists).dictionary_encode()
    blocks = np.concatenate([np.zeros(0, np.int32), *(np.asarray(part.indices) for part in codes.chunks)])
    counts = np.asarray(pc.list_value_length(lists).fill_null(0))
    return np.split(blocks, np.cumsum(counts)[:-1]) if len(blocks) else []


def _common(prompts: list[np.ndarray]) -> np.ndarray:
    """(P,) leading blocks of each prompt that at least 1 % of all have."""
    often = np.bincount(np.concatenate(prompts)) >= max(COMMON_SHARE * len(prompts), COMMON_LEAST)
    return np.array([_leading(often[prompt]) for prompt in prompts], np.int64)


def _linked(prompts: list[np.ndarray], common: np.ndarray) -> np.ndarray:
    """(P,) number of the session of each prompt, by the last one that holds the deepest block that came before."""
    holder = np.full(1 + max(int(prompt.max(initial=-1)) for prompt in prompts), -1)  # session of each block
    session = np.empty(len(prompts), np.int64)
    count = 0
    for row, prompt in enumerate(prompts):
        size = _leading(holder[prompt] >= 0)
        if size > common[row]:
            session[row] = holder[prompt[size - 1]]
        else:
            session[row], count = count, count + 1
        holder[prompt] = session[row]
    return session


def _leading(values: np.ndarray) -> int:
    """How many values are true before the first that is not."""
    return len(values) if values.all() else int(np.argmin(values))
