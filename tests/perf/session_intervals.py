"""How often the interval of one run with sessions holds the truth: requests of a session are alike, and come mixed.

    python tests/perf/session_intervals.py --cases 60 --runs 100

Cases are drawn at random: sessions that begin at random times, or users who have one after the other; turns and think
times; how much of the variance of ln(TTFT) is that of sessions; the share within the bound. The truth is known. Blocks
of time alone stand beside blocks and sessions.
"""

import math
from dataclasses import dataclass

import numpy as np
from _options import parsed  # beside this file
from scipy.special import ndtri

from harness.stats.within_run import FEWEST_SESSIONS, SESSIONS_FOR_P99, Blocks, Resampled, Sessions

SPREAD = 1.0
"""Standard deviation of ln(TTFT)."""


@dataclass(frozen=True)
class Case:
    """Traffic: `users` in a closed loop (0: sessions begin at random), mean turns of a session, share of the variance
    that is between sessions, share of requests within the bound, requests of a run, and how many of these sessions one
    after the other fill it."""

    users: int
    turns: float
    alike: float
    within: float
    requests: int
    sessions: float

    @classmethod
    def draw(cls, number: int) -> "Case":
        """The case of that number."""
        rng = np.random.default_rng(number)
        requests = int(np.exp(rng.uniform(np.log(400), np.log(4000))))
        turns = float(np.exp(rng.uniform(np.log(3), np.log(60))))
        users = int(rng.choice([0, 4, 8, 16, 32]))
        alike, within = float(rng.uniform(0.2, 0.95)), float(rng.uniform(0.6, 0.97))
        return cls(users, turns, alike, within, requests, requests / turns)

    def run(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """TTFT (n,) and session (n,) of the requests of a run in the order of their times."""
        times, session = [], []
        count = 4 * math.ceil(self.sessions) + 64
        turns = rng.geometric(1 / self.turns, count)
        lasts = [np.cumsum(rng.exponential(1.0, n)) for n in turns]
        if self.users:
            free = rng.uniform(0, 1, self.users)
            for number, at in enumerate(lasts):
                user = int(np.argmin(free))
                times.append(free[user] + at)
                session.append(np.full(len(at), number))
                free[user] += at[-1]
            end = free.min()
        else:
            begins = np.sort(rng.uniform(0, count, count)) * self.turns / max(4.0, self.turns)
            for number, at in enumerate(lasts):
                times.append(begins[number] + at)
                session.append(np.full(len(at), number))
            end = begins[-1]
        at, of = np.concatenate(times), np.concatenate(session)
        order = np.argsort(at, kind="stable")
        order = order[at[order] < end][-self.requests :]  # what begins empty is not measured
        own, each = rng.standard_normal(count), rng.standard_normal(len(order))
        of = of[order]
        ttft = np.exp(SPREAD * (math.sqrt(self.alike) * own[of] + math.sqrt(1 - self.alike) * each))
        return ttft, of.astype(float)


def main() -> None:
    """Print the worst cases, and how often the intervals held."""
    given = parsed(__doc__, cases=60, runs=100, first=0)
    lines = []
    for number in range(given.first, given.first + given.cases):
        case = Case.draw(number)
        held, width, effective = np.zeros((2, 3)), np.zeros(2), []
        bound = math.exp(SPREAD * float(ndtri(case.within)))
        truths = (case.within, math.exp(SPREAD**2 / 2), math.exp(SPREAD * float(ndtri(0.99))))
        for run in range(given.runs):
            ttft, session = case.run(np.random.default_rng([number, run]))
            blocks, sessions = Blocks.draw(len(ttft)), Sessions.draw(session)
            met = (ttft <= bound).astype(float)
            if sessions is None or sessions.count < FEWEST_SESSIONS or not 0.01 <= met.mean() <= 0.99:
                continue
            effective.append(sessions.count)
            for place, drawn in enumerate((Resampled([blocks]), Resampled([blocks, sessions]))):
                found = drawn.share(met), drawn.mean(ttft), drawn.percentile(ttft, 0.99)
                held[place] += [low <= truth <= high for truth, (low, high) in zip(truths, found, strict=True)]
                width[place] += found[0][1] - found[0][0]
        made = len(effective)
        if made:
            lines.append((case, float(np.median(effective)), held / made, width / made))
    lines.sort(key=lambda line: line[2][1][0])
    print("attainment, mean, p99 held: blocks alone | blocks and sessions | width of attainment | sessions that count")
    for case, effective, held, width in lines[:10]:
        shares = " | ".join(" ".join(f"{share:4.0%}" for share in row) for row in held)
        print(f"{shares} | {width[0]:.3f} {width[1]:.3f} | {effective:5.1f} | {case}")
    for name, place in (("blocks alone", 0), ("blocks and sessions", 1)):
        shares = np.array([line[2][place] for line in lines])
        many = np.array([line[2][place] for line in lines if line[1] >= SESSIONS_FOR_P99])
        print(f"{name}: attainment {shares[:, 0].mean():.1%} (worst {shares[:, 0].min():.0%}), mean "
              f"{shares[:, 1].mean():.1%} (worst {shares[:, 1].min():.0%}), p99 of {SESSIONS_FOR_P99} sessions or more "
              f"{many[:, 2].mean():.1%} (worst {many[:, 2].min():.0%})")  # fmt: skip


if __name__ == "__main__":
    main()
