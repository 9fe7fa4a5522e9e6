"""Arrivals like those of BurstGPT: people who chat by day, and programs that come in campaigns and in bursts."""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

import numpy as np
from msgspec import Meta

from harness.bounds import DayHour, NotNegative, Positive, Weekday, check
from workloads.arrivals import _exact
from workloads.arrivals._operational import Piece, Stretch, gamma, times_along, wandering
from workloads.arrivals._services import DAYS, HOUR_S, WINDOW_S, Api, Conversation, read_figures, table_pieces
from workloads.arrivals.azure import Azure

COVERS = "31 days of one university's service: other months and services have other campaigns"
Service = Literal["both", "api", "conversation"]
Mode = Literal["week", "steady", "figure6"]


@dataclass(frozen=True, slots=True)
class Burstgpt:
    """The two services of BurstGPT, each a renewal process along its own random rate; times in seconds.

    `conversation` follows the daily curve of figure 4 with quieter weekends, with gamma gaps of shape 0.80 inside,
    nearly Poisson. `api` comes in campaigns (1.4 begin a day, most about 14h and few at night, 5.6 h each, rates
    lognormal); inside, rate and gamma shape (0.02 to 4) change every 20 minutes as in figure 6: that is where the
    bursts are. `both` superposes them with
    `api_share` of the requests (0.896 as in part 1). One shape for all of BurstGPT fits neither.

    `mode=week` is all of this. `mode=steady` leaves out curve and campaigns: what happens inside, for runs of minutes
    at a known rate. `mode=figure6` replays the 54 windows that the figure shows of one service's day (from 12h for
    api, from 8h for conversation), again and again.

    `rate_rps` is the long-run mean rate; None is that of the first month of part 1 (0.2775 requests/s for both) or of
    figure 6. It scales the rate and leaves the law of neighbouring gaps alone. A run begins at hour `start_h` of day
    `start_day` (0 is Monday); at noon conversation is near its mean, at 4h almost nothing comes (the head of the
    published file is such a stretch). A run begins on a day on which campaigns carry about their mean at that hour, and
    may see none for hours later. `grain_s=1` rounds times down to whole seconds, as the published stamps are.

    With `over_s` each window of so many seconds has `rate_rps` within 1 %, and each service its share of it. Inside,
    the rate of each service wanders in addition as that of `azure` does, since figure 6 shows nothing below 20
    minutes; campaigns, which last hours, neither begin nor end. A run of at most two hours is such a window unless
    `mean=long-run`: then its rate is itself drawn, and can be several times `rate_rps`.

    All of it follows figures of one university's service and its first month; of 40 months drawn, 36 have 769 to 1,338
    requests an hour at the rate of that month (999), 12 to 22 % of them in the busiest 1 % of hours (21 %), and a
    correlation of roots of hourly counts after a day from -0.04 to 0.20 (0.22). Other months and services differ more.

    Source: HPMLL/BurstGPT (KDD 2025, arXiv 2401.17644), figures 4 and 6 and the hourly counts of its first month.
    """

    service: Service = "both"
    rate_rps: Positive | None = None
    mode: Mode = "week"
    api_share: Annotated[float, Meta(gt=0, lt=1)] | None = None
    start_day: Weekday = 0
    start_h: DayHour = 12.0
    grain_s: NotNegative = 0.0
    mean: _exact.Mean = "exact"
    over_s: Positive | None = None
    figures: Mapping[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check(self)
        if self.service == "both" and self.mode == "figure6":
            raise ValueError("figure 6 shows one service at a time; give service=api or service=conversation.")
        _exact.check(self.mean, self.over_s)
        if self.mode == "figure6" and self.over_s is not None:
            raise ValueError("over does not go with mode=figure6, which replays a table at its own rates.")
        if self.api_share is not None and self.service != "both":
            raise ValueError(f"api_share goes with service=both; service={self.service} is one service alone.")
        object.__setattr__(self, "figures", read_figures())

    @property
    def mean_rate_rps(self) -> float:
        return self._published_rps() if self.rate_rps is None else self.rate_rps

    @property
    def settles_s(self) -> float:
        """Shortest time in which the mean rate must show: twenty campaigns or windows, two weeks, or two turns.

        That of one exact window, where there is one.
        """
        if self.over_s is not None:
            return self.over_s
        if self.mode == "figure6":
            return 2 * WINDOW_S * len(self.figures["figure6"][self.service]["mean_gap_s"])
        api_s = 20 * (float(self.figures["api"]["campaign_h"]) * HOUR_S if self.mode == "week" else WINDOW_S)
        conversation_s = 2 * DAYS * 24 * HOUR_S if self.mode == "week" else 0.0
        return {"api": api_s, "conversation": conversation_s, "both": max(api_s, conversation_s)}[self.service]

    @property
    def facts(self) -> dict[str, object]:
        """Source and licence of the figures, and what they cover."""
        return {key: self.figures[key] for key in ("source", "licence")} | {"covers": COVERS}

    def for_run(self, span_s: float) -> Self:
        """These arrivals for a run of so many seconds; a replayed table stays as it is."""
        return self if self.mode == "figure6" else replace(self, over_s=_exact.window(self.mean, self.over_s, span_s))

    def times(self, rng: np.random.Generator, draws: int = _exact.MOST_DRAWS) -> Iterator[float]:
        """Endless arrival times in seconds; `draws` as of `_exact.times`."""
        api_rng, conversation_rng = rng.spawn(2)
        streams = []
        if self.service != "conversation":
            streams.append(self._api(api_rng, draws))
        if self.service != "api":
            streams.append(self._conversation(conversation_rng, draws))
        merged = streams[0] if len(streams) == 1 else heapq.merge(*streams)
        return merged if self.grain_s == 0 else (math.floor(t / self.grain_s) * self.grain_s for t in merged)

    def _api(self, rng: np.random.Generator, draws: int) -> Iterator[float]:
        rate_rps = self.mean_rate_rps * (self._share() if self.service == "both" else 1.0)
        if self.mode == "figure6":
            return _along(self._table(rng), rng)
        if self.over_s is not None:
            return _exact.times(self._api_path, rate_rps, self.over_s, rng, draws)
        inside_rng, levels_rng = rng.spawn(2)
        api = Api(**self.figures["api"])
        levels = (
            iter([(math.inf, rate_rps)]) if self.mode == "steady" else api.levels(rate_rps, self.start_h, levels_rng)
        )
        return _along(api.pieces(levels, inside_rng), rng)

    def _conversation(self, rng: np.random.Generator, draws: int) -> Iterator[float]:
        rate_rps = self.mean_rate_rps * (1 - self._share() if self.service == "both" else 1.0)
        if self.mode == "figure6":
            return _along(self._table(rng), rng)
        if self.over_s is not None:
            return _exact.times(self._conversation_path, rate_rps, self.over_s, rng, draws)
        gaps_rng, noise_rng = rng.spawn(2)
        conversation = Conversation(**self.figures["conversation"])
        gaps = gamma(conversation.gamma_shape, gaps_rng, running=True)
        if self.mode == "steady":
            return times_along([Piece(math.inf, rate_rps, rate_rps)], gaps)
        return times_along(conversation.pieces(rate_rps, 24 * self.start_day + self.start_h, noise_rng), gaps)

    def _api_path(self, start_s: float, rng: np.random.Generator) -> Iterator[Stretch]:  # noqa: ARG002  # no hour
        inside_rng, wander_rng = rng.spawn(2)
        level = iter([(math.inf, 1.0)])  # a campaign that ends in the window would leave all requests to its begin
        return self._wandering(Api(**self.figures["api"]).stretches(level, inside_rng), wander_rng)

    def _conversation_path(self, start_s: float, rng: np.random.Generator) -> Iterator[Stretch]:
        noise_rng, wander_rng = rng.spawn(2)
        conversation = Conversation(**self.figures["conversation"])
        begin_h = 24 * self.start_day + self.start_h + start_s / HOUR_S
        steady = iter([Piece(math.inf, 1.0, 1.0)])
        pieces = steady if self.mode == "steady" else conversation.pieces(1.0, begin_h, noise_rng)
        path = (
            Stretch(p.duration_s, p.start_rps, None if i else conversation.gamma_shape) for i, p in enumerate(pieces)
        )
        return self._wandering(path, wander_rng)

    def _wandering(self, path: Iterator[Stretch], rng: np.random.Generator) -> Iterator[Stretch]:
        """A path whose rate wanders in a window as that of the Azure trace does."""
        assert self.over_s is not None
        return wandering(path, *Azure().rate_windows(self.over_s, rng))

    def _table(self, rng: np.random.Generator) -> Iterator[Piece]:
        return table_pieces(self.figures["figure6"][self.service], self.mean_rate_rps / self._published_rps(), rng)

    def _share(self) -> float:
        """Share of the API service in `both`."""
        return float(self.figures["api_share"]) if self.api_share is None else self.api_share

    def _published_rps(self) -> float:
        if self.mode == "figure6":
            return float(np.mean(1 / np.array(self.figures["figure6"][self.service]["mean_gap_s"])))
        share = float(self.figures["api_share"])
        return float(self.figures["rate_rps"]) * {"both": 1.0, "api": share, "conversation": 1 - share}[self.service]


def _along(pieces: Iterator[Piece], rng: np.random.Generator) -> Iterator[float]:
    """Times along pieces of which the first brings its gap law."""
    return times_along(pieces, rng.standard_exponential)
