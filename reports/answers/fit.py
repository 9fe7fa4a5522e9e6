"""What `bench fit` found: constants with intervals, and the error on what it did not see."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from reports._format import in_markdown
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look

_ERRORS = ("rows", "count", "mean error", "P90", "summed time")
_UNITS = {
    "base_s": "s", "floor_s": "s", "overhead_s": "s", "front_end_s": "s", "token_s": "s/token",
    "prefill_token_s": "s/token", "decode_seq_s": "s/sequence", "seq_s": "s/sequence", "context_token_s": "s/token",
    "prefill_token_squared_s": "s/token^2", "memory_share": "of bandwidth", "flops_share": "of peak",
}  # fmt: skip
_ABC = {"a_s": "s", "b_s": "s/token", "c_s": "s/sequence"}
_Table = Callable[..., str]


def text(info: Mapping[str, Any], look: Look = PLAIN) -> str:
    """Constants, errors on seen and unseen rows, and what to do next."""
    return "\n".join(_parts(info, partial(_curve.text, look=look), _curve.wrapped))


def markdown(info: Mapping[str, Any]) -> str:
    """The same as markdown."""
    return "\n".join(_parts(info, _curve.markdown, partial(in_markdown, limit=None)))


def _parts(info: Mapping[str, Any], table: _Table, told: Callable[[str], str]) -> Iterator[str]:
    yield f"{told(_said(info))}\n"
    if info["constants"]:
        yield table((f"constant of {info['latency']}", "value", "+- (95%)", "unit"), [*_constants(info)], left=1)
    for name, points in info["points"].items():
        yield f"{told(_points(name, points))}\n"
    yield table(_ERRORS, [*_errors(info)], left=1)
    yield from (f"{told(note)}\n" for note in _notes(info))


def _said(info: Mapping[str, Any]) -> str:
    left = f"; {info['left_out_rows']:,} rows hold no step and are left out" if info["left_out_rows"] else ""
    return (
        f"The latency model '{info['latency']}', fitted to {info['seen_rows']:,} {info['what']} and scored on "
        f"{info['unseen_rows']:,} that it did not see (seed {info['seed']}){left}."
    )


def _constants(info: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for row in info["constants"]:
        spread = "given" if row["given"] else "" if row["plus_minus"] is None else f"{row['plus_minus']:.2g}"
        yield row["name"], f"{row['value']:.5g}", spread, _unit(row["name"])


def _unit(name: str) -> str:
    if name in _UNITS:
        return _UNITS[name]
    unit = next((unit for end, unit in _ABC.items() if name.endswith(f"_{end}")), "")
    return "s/token^2" if name == "prefill_c_s" else unit


def _points(name: str, points: Sequence[Sequence[float]]) -> str:
    what = {"prefill": "tokens of a step with prompts", "decode": "decodes of a step"}.get(name, name)
    shown = [points[i] for i in sorted({0, len(points) // 4, len(points) // 2, 3 * len(points) // 4, len(points) - 1})]
    told = ", ".join(f"{point[0]:,.0f}: {point[-1] * 1000:.4g} ms" for point in shown)
    return f"{len(points)} points by {what}, among them {told}."


def _errors(info: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    for which in ("unseen", "seen"):
        for row in info[which]:
            kind = f"{which}, {row['kind']}"
            yield kind, f"{row['rows']:,}", f"{row['mean']:.1%}", f"{row['p90']:.1%}", f"{row['bias']:+.1%}"


def _notes(info: Mapping[str, Any]) -> Iterator[str]:
    for name, why in info["left_out"].items():
        yield f"{name} is left out: {why}."
    known = [row for row in info["constants"] if row["plus_minus"] is not None]
    wide = [row["name"] for row in known if 0 < row["value"] < row["plus_minus"]]
    if wide:
        names = ", ".join(wide)
        yield f"Intervals hold 0, so these rows hardly tell {names}: measure other loads, or give it with --fix."
    if info["out"]:
        yield f"Written to {info['out']}; next: bench run --backend sim --latency file:{info['out']}"
    else:
        yield "Nothing is written; --out FILE.toml keeps the model for --latency file:FILE.toml."
