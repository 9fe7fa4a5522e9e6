"""Category-aware semantic caching: answers are stored and found again by rules that differ from category to category.

Source: Wang et al., Category-Aware Semantic Caching for Heterogeneous LLM Workloads (arXiv 2510.26835). It claims that
categories of low hit rates pay once a search takes 2 ms instead of 30 ms, and that 9 to 17 % less traffic reaches an
overloaded model where thresholds follow its load. The vLLM Semantic Router has such a cache.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from math import inf, log
from typing import Literal, NamedTuple

from backends.serving.plugins import unit
from harness.api import CachedAnswer, Request, RequestRecord, Row
from harness.bounds import AtLeastOne, NotNegative, Share, check
from harness.data.dependencies import ended_s

WRONG_SHARE, NEIGHBOURS = 0.02, 1000
"""The threshold of a category lets this share of questions find the answer to another one among so many."""
FRESH = 0.25
"""Answers are used for this share of the time for which they hold on average."""
LONGER = 1.0
"""At full load answers are used for so many times longer beyond their time."""
FARTHEST = 0.3
"""The largest distance that load allows."""


@dataclass(frozen=True, slots=True)
class Category:
    """How questions of one kind lie and age: a model, whose numbers are ours.

    Distances are 1 - similarity. Two ways to put one question are an exponential distance of mean `alike` from one
    another. Questions lie in a space of `dims` dimensions, in which the nearest of n others is at
    `apart` (E / n) ** (1 / `dims`), E exponential of mean 1. Answers hold for an exponential time of mean `holds_s`;
    `quota` is their share of the entries.
    """

    alike: float = 0.06
    apart: float = 0.6
    holds_s: float = 86400.0
    quota: float = 1.0
    dims: int = 8

    def distance(self, share: float, others: int) -> float:
        """The distance within which this share of questions has one of `others`; inf without others."""
        return self.apart * (-log(1 - share) / others) ** (1 / self.dims) if others else inf


CATEGORIES = {
    "code": Category(alike=0.05, apart=0.45, holds_s=30 * 86400.0, quota=0.4),  # dense, holds for months
    "documentation": Category(alike=0.06, apart=0.55, holds_s=7 * 86400.0, quota=0.3),
    "conversation": Category(alike=0.12, apart=0.9, quota=0.2),  # sparse
    "market": Category(alike=0.05, apart=0.5, holds_s=300.0, quota=0.1),  # holds for minutes
}


class Entry(NamedTuple):
    """When an answer was stored, and from when on it is not true any more."""

    stored_s: float
    stale_s: float


@dataclass(slots=True)
class SemanticCache:
    """Answers a question with what was answered to one alike, by the similarity of their embeddings.

    There are no embeddings: a workload names the category and cluster of each request (`clusters` of a class), requests
    of one cluster ask the same, and distances are drawn for each request. So it is known which answers are those to
    another question (wrong) or out of date (stale). uniform: one `threshold` and `ttl_s` for all, those of the vLLM
    Semantic Router; category: a threshold by which 2 % of questions get the answer to one of 1,000 others, a quarter of
    the time for which answers hold, and a quota of the entries; adaptive: looser by up to `looser` and for up to twice
    as long, the nearer `full` requests are with the backend. Entries go first in, first out.

    A request goes on after `search_s`, by default 2 ms for the index and 5 ms for the embedding; an answer takes
    `fetch_s` more.
    """

    rules: Literal["uniform", "category", "adaptive"] = "category"
    threshold: Share = 0.85
    ttl_s: NotNegative = 3600.0
    entries: AtLeastOne = 100_000
    search_s: NotNegative = 0.007
    fetch_s: NotNegative = 0.0
    full: AtLeastOne = 64
    looser: Share = 0.05
    seed: int = 0
    _stored: dict[str, OrderedDict[int, Entry]] = field(default_factory=dict, init=False, repr=False)
    _in_flight: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        check(self)

    def __repr__(self) -> str:
        counts = ", ".join(f"{len(entries):,} {name}" for name, entries in self._stored.items())
        return f"<SemanticCache {self._in_flight} in flight, {counts or 'empty'}>"

    def lookup(self, request: Request, now_s: float) -> CachedAnswer | None:
        """The nearest question alike, unless another is nearer; None where none is near enough."""
        answer = self._nearest(request, now_s)
        self._in_flight += answer is None
        return answer

    def _nearest(self, request: Request, now_s: float) -> CachedAnswer | None:
        extra = request.extra
        if extra is None or extra.cluster is None or extra.category not in self._stored:
            return None
        name = extra.category
        category, stored, load = of_category(name), self._stored[name], min(1.0, self._in_flight / self.full)
        within, ttl_s = self._rules(category, load)
        while stored and now_s - next(iter(stored.values())).stored_s >= ttl_s:
            stored.popitem(last=False)
        own = stored.get(extra.cluster)
        alike = inf if own is None else -category.alike * log(1 - unit(self.seed, 3 * request.id))
        other = category.distance(unit(self.seed, 3 * request.id + 1), len(stored) - (own is not None))
        if min(alike, other) >= within:
            return None
        if own is None or other < alike:
            return CachedAnswer("wrong", self.search_s + self.fetch_s)
        return CachedAnswer("right" if now_s < own.stale_s else "stale", self.search_s + self.fetch_s)

    def _rules(self, category: Category, load: float) -> tuple[float, float]:
        """The distance below which an answer is used, and the age (s)."""
        if self.rules == "uniform":
            return 1 - self.threshold, self.ttl_s
        within, ttl_s = category.distance(WRONG_SHARE, NEIGHBOURS), FRESH * category.holds_s
        if self.rules == "category":
            return within, ttl_s
        return max(within, min(FARTHEST, within + self.looser * load)), ttl_s * (1 + LONGER * load)

    def store(self, request: Request, record: RequestRecord) -> None:
        """Keep an answer, in the place of the oldest where there is no room."""
        self._in_flight -= 1
        extra = request.extra
        if record.status != "ok" or extra is None or extra.cluster is None or extra.category is None:
            return
        category, stored = of_category(extra.category), self._stored.setdefault(extra.category, OrderedDict())
        now_s, holds = ended_s(record), -log(1 - unit(self.seed, 3 * request.id + 2))
        stored.pop(extra.cluster, None)
        stored[extra.cluster] = Entry(now_s, now_s + holds * category.holds_s)
        if self.rules != "uniform" and len(stored) > max(1, int(self.entries * category.quota)):
            stored.popitem(last=False)
        if sum(map(len, self._stored.values())) > self.entries:
            min(filter(None, self._stored.values()), key=lambda of: next(iter(of.values()))).popitem(last=False)

    def check(self) -> None:
        """Raise AssertionError where it holds more than it may, or entries are not in order."""
        assert self._in_flight >= 0
        assert sum(map(len, self._stored.values())) <= self.entries
        for name, stored in self._stored.items():
            times = [entry.stored_s for entry in stored.values()]
            assert times == sorted(times)
            assert self.rules == "uniform" or len(stored) <= max(1, int(self.entries * of_category(name).quota))


def of_category(name: str) -> Category:
    """The category of that name; one like any other where it has no numbers of its own."""
    return CATEGORIES.get(name, Category())


def semantic_cache(
    search_s: float = 0.03, embedding_s: float = 0.0, answer_s: float = 0.2, fetch_s: float = 0.0
) -> list[Row]:
    """The hit rate from which on a semantic cache makes answers come earlier on average.

    All requests pay for the search and the embedding of the question; a hit saves the time of an answer less that of
    fetching it: (search + embedding) / (answer - fetch).

    Source: Category-Aware Semantic Caching, arXiv 2510.26835, abstract; the embedding is ours.
    """
    if answer_s <= fetch_s:
        raise ValueError("answer must take longer than fetch.")
    return [{"break_even_share": (search_s + embedding_s) / (answer_s - fetch_s)}]
