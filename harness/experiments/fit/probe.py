"""A short probing run of a live endpoint: prompts alone, then answers beside one another.

What a client sees is turned into steps: the first token of a prompt alone is one step and the server's front end; the
gap between two tokens is a step of as many decodes as were under way, if no prompt ran meanwhile.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from harness.data.folder import Run
from harness.errors import BackendError, UsageError
from harness.experiments.fit.solve import solve
from harness.experiments.fit.steps import Rows, joined
from harness.runner.run import RunSpec, execute

ALONE, PER_USER = 20, 2
"""Requests of the run with one user, and of each user where there are several."""

DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True)
class Probe:
    """What to send: prompts of 16 to `most_tokens` tokens, answers of `answer_tokens`, at each number of `users`."""

    users: Sequence[int] = (1, 2, 4, 8)
    most_tokens: int = 1024
    answer_tokens: int = 32


def rows(backend: str, probe: Probe, seed: int, say: Callable[[str], None]) -> Rows:
    """The steps that the endpoint was seen to take. Raises BackendError where it does not answer."""
    if len({*probe.users}) < 2 or min(probe.users) != 1:
        raise UsageError(f"--users must begin with 1 and name another number, got {','.join(map(str, probe.users))}.")
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for users in probe.users:
            say(f"probing with {users} at a time")
            run = _run(backend, users, probe, seed, Path(folder))
            parts.append(seen(run.requests, alone=users == 1))
    steps = joined(parts)
    return steps.take(np.random.default_rng(seed).permutation(len(steps)))  # prompts shall be held out too


def _run(backend: str, users: int, probe: Probe, seed: int, folder: Path) -> Run:
    answer = probe.answer_tokens
    spec = RunSpec(
        workload="chatbot", backend=backend, arrivals=f"closed:users={users},think=0",
        lengths=f"uniform:prompt_min=16,prompt_max={probe.most_tokens},output_min={answer},output_max={answer}",
        requests=max(ALONE, PER_USER * users), slo=f"ttft={DEADLINE_S:g}", seed=seed + users,
    )  # fmt: skip
    result = execute(spec, out=folder / str(users), shared=folder / "probe.json")
    result.outcome.check(whole=True)
    run = result.run
    good = run.requests["status"].to_pylist().count("ok")
    if good < run.requests.num_rows / 2 or not good:
        why = next((error for error in run.requests["error"].to_pylist() if error), "no answer came")
        raise BackendError(f"Probing '{backend}' failed: {good} of {run.requests.num_rows} answers were good ({why}).")
    return run


def seen(requests: pa.Table, *, alone: bool) -> Rows:
    """The steps in the answers of a run; first tokens count only where requests were `alone`."""
    finished = requests.filter(np.asarray(requests["status"].to_pylist()) == "ok")
    sent_s, prompts = finished["sent_s"].to_numpy(), finished["prompt_tokens"].to_numpy()
    stamps = [np.array(times) for times in finished["token_s"].to_pylist()]
    counts = [np.array(counts) for counts in finished["token_n"].to_pylist()]
    first_s, last_s = (np.array([times[place] for times in stamps]) for place in (0, -1))
    parts = [_gaps(i, stamps, counts, prompts, (sent_s, first_s, last_s)) for i in range(len(stamps))]
    if alone:
        zeros = np.zeros(len(prompts))
        n = prompts.astype(float)
        parts.append(Rows(n, zeros, zeros, n * n, first_s - sent_s))
    steps = joined(parts)
    return steps.take(steps.seconds > 0)


def _gaps(
    mine: int, stamps: Sequence[np.ndarray], counts: Sequence[np.ndarray], prompts: np.ndarray,
    times: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> Rows:  # fmt: skip
    """The gaps of one answer during which no other prompt ran, each as a step of all that were decoding."""
    sent_s, first_s, last_s = times
    start_s, end_s = stamps[mine][:-1, None], stamps[mine][1:, None]  # (gaps, 1)
    decoding = (first_s <= start_s) & (last_s >= end_s)  # (gaps, requests)
    clean = ~((sent_s < end_s) & (first_s > start_s)).any(axis=1)
    done = np.clip((start_s - first_s) / np.maximum(last_s - first_s, 1e-9), 0, 1)
    context = (decoding * (prompts + done * np.array([count.sum() for count in counts]))).sum(axis=1)
    seconds = (end_s - start_s)[:, 0] / counts[mine][1:]
    zeros = np.zeros(int(clean.sum()))
    return Rows(zeros, decoding.sum(axis=1)[clean].astype(float), context[clean], zeros, seconds[clean])


def front_end_s(found: Rows) -> float:
    """Seconds that a prompt spends before and after its step: what its first token takes beyond a linear step."""
    ones = np.ones(len(found))
    columns = {"base_s": ones, "prefill_token_s": found.tokens, "prefill_token_squared_s": found.pairs,
               "decode_seq_s": found.seqs, "context_token_s": found.context,
               "front_end_s": (found.tokens > 0).astype(float)}  # fmt: skip
    return solve(columns, found.seconds, {}).values["front_end_s"]
