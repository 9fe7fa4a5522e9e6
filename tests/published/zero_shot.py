"""How far the simulator is from public benchmarks of models and GPUs that nothing was fitted to.

    python tests/published/zero_shot.py [--data DIR] [--out zero_shot.json] [--rows 300] [--constants | --roofline]
                                            [--compared]

Steps are sums of measured kernels (`operators`). Their three constants, host seconds per sequence and per kernel of
steps with prompts, and how much longer kernels of these take, are those that are best on rows of *other models on other
GPUs*, for each model and GPU anew; an error of TTFT counts as much as one of TPOT.
Errors are |ln(simulated / measured)|. `--constants` prints what is best on all rows: the defaults of `operators`.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness.experiments import pool
from published import served
from published.served import Row

Constants = dict[str, float]
SCALES = (1.15, 1.3)
LAUNCHES_S = (30e-6, 60e-6, 90e-6)
SEQS_S = np.linspace(0, 40e-6, 21)
SAMPLE = 200
"""Rows that constants are chosen on, spread evenly over the groups."""
WAITS = 2.5
"""Steps that a request waits for and runs in before its first token, each longer by what the host takes."""


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """(rows,) log ratios of simulated to measured TTFT and TPOT."""

    ttft: np.ndarray
    tpot: np.ndarray


Grid = Mapping[tuple[float, float], Scored]
"""What `prefill_scale` and `launch_s` give, without any seconds of the host per sequence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, and write it as JSON; returns 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR")
    parser.add_argument("--out", metavar="FILE")
    parser.add_argument("--rows", type=int, help="so many rows drawn at random, instead of all")
    parser.add_argument("--constants", action="store_true")
    parser.add_argument("--roofline", action="store_true", help="score the roofline as it stands instead")
    parser.add_argument(
        "--compared", action="store_true", help="write what answers print: harness/catalog/compared.toml"
    )
    given = parser.parse_args(arguments)
    from published import compared, sources

    data = sources.data_folder(given.data)
    if data is None:
        print("The public measurements are not here; name their folder with --data DIR.", file=sys.stderr)
        return 2
    rows, left_out = served.rows(data)
    rng = np.random.default_rng(0)
    sample, grid = tried(rows, data, rng, is_needed=not given.roofline)
    if given.constants:
        print(best(sample, grid, np.ones(len(sample), bool)))
        return 0
    if given.rows is not None:
        rows = [rows[i] for i in sorted(rng.choice(len(rows), given.rows, replace=False))]
    scored = simulated(rows, data, [{}] * len(rows) if given.roofline else left_out_constants(rows, sample, grid))
    if given.compared:
        latency = "roofline" if given.roofline else "operators"
        compared.write(rows, scored.tpot, scored.ttft, latency=latency, source="tests/published/zero_shot.py")
    found = table(rows, scored)
    found["left_out"] = dict(left_out)
    print(text(found))
    if given.out is not None:
        Path(given.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0 if all(one["holds"] for one in found["targets"]) else 1


def tried(
    rows: Sequence[Row], data: Path, rng: np.random.Generator, *, is_needed: bool = True
) -> tuple[list[Row], Grid]:
    """Rows that constants are chosen on, and what each of the constants gives for them; nothing unless `is_needed`."""
    sample = [rows[i] for i in sorted(rng.choice(len(rows), min(SAMPLE, len(rows)), replace=False))]
    if not is_needed:
        return sample, {}
    return sample, {
        (scale, launch_s): simulated(
            sample, data, [{"prefill_scale": scale, "launch_s": launch_s, "seq_s": 0.0}] * len(sample)
        )
        for scale in SCALES
        for launch_s in LAUNCHES_S
    }


def left_out_constants(rows: Sequence[Row], sample: Sequence[Row], grid: Grid) -> list[Constants]:
    """Of each row the constants that are best on rows of other models on other GPUs."""
    chosen = {
        key: best(sample, grid, np.array([r.model != key[0] and r.gpu != key[1] for r in sample]))
        for key in {(row.model, row.gpu) for row in rows}
    }
    return [chosen[row.model, row.gpu] for row in rows]


def simulated(rows: Sequence[Row], data: Path, constants: Sequence[Constants]) -> Scored:
    """How far each row is off with its constants; without any, that of the roofline."""
    tasks = [
        (i, row, data / "operators", tuple(one.items()))
        for i, (row, one) in enumerate(zip(rows, constants, strict=True))
    ]
    times = np.zeros((len(rows), 2))
    with pool.of() as workers:
        for task, answer in workers.map(served.simulated_task, tasks):
            times[task[0]] = answer
    ratios = np.log(times / np.array([(row.ttft_s, row.tpot_s) for row in rows]))
    return Scored(ratios[:, 0], ratios[:, 1])


def best(rows: Sequence[Row], grid: Grid, others: np.ndarray) -> Constants:
    """The constants with the least median error of TTFT and TPOT together on `others`, each group alike, and the least
    bias of TTFT."""
    groups = {key: i for i, key in enumerate(dict.fromkeys((r.source, r.gpu, r.engine, r.model) for r in rows))}
    group = np.array([groups[r.source, r.gpu, r.engine, r.model] for r in rows])
    clients = np.array([row.clients / row.dp for row in rows])
    ttft_s, tpot_s = (np.array([getattr(row, name) for row in rows]) for name in ("ttft_s", "tpot_s"))
    least: tuple[float, Constants] = (np.inf, {})
    for (scale, launch_s), found in grid.items():
        for seq_s in SEQS_S:
            late = np.log(np.exp(found.ttft) + WAITS * seq_s * clients / ttft_s)
            slow = np.log(np.exp(found.tpot) + seq_s * clients / tpot_s)
            error = np.abs(late) + np.abs(slow)
            mean = float(np.mean([np.median(error[others & (group == i)]) for i in np.unique(group[others])]))
            mean += abs(float(np.median(late[others])))
            if mean < least[0]:
                least = (mean, {"prefill_scale": scale, "launch_s": launch_s, "seq_s": round(float(seq_s), 7)})
    return least[1]


def table(rows: Sequence[Row], scored: Scored) -> dict[str, Any]:
    """Errors by part, by GPU, engine and model, of repeated rows, the worst ten, and the targets."""
    tables, none = (np.array([row.has_tables == which for row in rows]) for which in (True, False))
    groups: dict[tuple[str, ...], list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault((row.source, row.gpu, row.engine, row.model, row.precision), []).append(i)
    parts = {"kernels measured on GPU and engine": tables, "not measured": none}
    overall = {name: _errors(scored, np.flatnonzero(mask)) for name, mask in parts.items() if mask.any()}
    kinds = {kind: np.flatnonzero([row.kind == kind for row in rows]) for kind in ("median", "mean")}
    by_kind = {f"TTFT given as a {kind}": _errors(scored, where) for kind, where in kinds.items() if len(where)}
    order = np.argsort(-np.maximum(np.abs(scored.tpot), np.abs(scored.ttft) / 2))
    limits = {"kernels measured on GPU and engine": (0.12, 0.30), "not measured": (0.25, 0.50)}
    targets = []
    for name, errors in overall.items():
        for which, limit in zip(("tpot", "ttft"), limits[name], strict=True):
            targets.append({"part": name, "figure": f"median {which}", "limit": limit, "obtained": errors[which]})
            targets.append(
                {"part": name, "figure": f"bias {which}", "limit": 0.10, "obtained": errors[f"{which}_bias"]}
            )
    for one in targets:
        one["holds"] = abs(one["obtained"]) <= one["limit"]
    return {
        "rows": len(rows), "overall": overall, "kinds": by_kind, "targets": targets, "repeats": _repeats(rows),
        "groups": sorted(
            ({"group": " ".join(key), **_errors(scored, where)} for key, where in groups.items()),
            key=lambda one: -one["tpot"],
        ),
        "worst": [{"row": str(rows[i].setting), "ttft": float(scored.ttft[i]), "tpot": float(scored.tpot[i])}
                  for i in order[:10]],
    }  # fmt: skip


def _errors(scored: Scored, where: Sequence[int] | np.ndarray) -> dict[str, float]:
    found: dict[str, float] = {"rows": len(where)}
    for name in ("tpot", "ttft"):
        logs = getattr(scored, name)[where]
        found |= {
            name: round(float(np.median(np.abs(logs))), 4),
            f"{name}_p90": round(float(np.quantile(np.abs(logs), 0.9)), 4),
            f"{name}_bias": round(float(np.median(logs)), 4),
        }
    return found


def _repeats(rows: Sequence[Row]) -> dict[str, float]:
    """Median and p90 of |ln| between two rows of one setting: what no simulator can be better than."""
    by: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        by.setdefault(row.setting, []).append(row)
    pairs = [(a, b) for same in by.values() for i, a in enumerate(same) for b in same[:i]]
    found: dict[str, float] = {"pairs": len(pairs)}
    for name in ("tpot_s", "ttft_s"):
        logs = [abs(np.log(getattr(a, name) / getattr(b, name))) for a, b in pairs]
        if logs:
            found |= {
                f"{name[:4]}": round(float(np.median(logs)), 4),
                f"{name[:4]}_p90": round(float(np.quantile(logs, 0.9)), 4),
            }
    return found


def text(found: dict[str, Any]) -> str:
    """The table for a terminal, worst groups first."""
    lines = [f"{'':<58}{'rows':>5}  TPOT: median, p90, bias     TTFT: median, p90, bias"]
    for one in [{"group": name, **errors} for name, errors in (found["overall"] | found["kinds"]).items()] + found[
        "groups"
    ]:
        numbers = "  ".join(
            f"{one[name]:6.3f} {one[f'{name}_p90']:6.3f} {one[f'{name}_bias']:+7.3f}" for name in ("tpot", "ttft")
        )
        lines.append(f"{one['group']:<58}{one['rows']:>5}  {numbers}")
    lines.append(f"repeated rows: {found['repeats']}")
    lines += [f"worst: {one['row']} TTFT {one['ttft']:+.2f} TPOT {one['tpot']:+.2f}" for one in found["worst"]]
    lines += [
        f"{'holds' if one['holds'] else 'MISSES'} {one['part']}: {one['figure']} {one['obtained']:+.3f}, "
        f"limit {one['limit']}"
        for one in found["targets"]
    ]
    return "\n".join(lines + [f"left out: {count} {reason}" for reason, count in found["left_out"].items()])


if __name__ == "__main__":
    sys.exit(main())
