"""SLOs derived from a decode step, beside the published ones."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from reports import _format
from reports._format import in_markdown
from reports.answers import _curve
from reports.answers._curve import PLAIN, Look

_DERIVED = ("derived", "decode steps", "p99 ITL", "--slo")
_PUBLISHED = ("Sarathi-Serve, table 3", "--model", "strict", "relaxed")
_Table = Callable[..., str]


def text(info: Mapping[str, Any], look: Look = PLAIN) -> str:
    """The derived SLOs, the published ones, and what to know about them."""
    return "\n".join(_parts(info, partial(_curve.text, look=look), _curve.wrapped))


def markdown(info: Mapping[str, Any]) -> str:
    """The same as markdown."""
    return "\n".join(_parts(info, _curve.markdown, partial(in_markdown, limit=None)))


def _parts(info: Mapping[str, Any], table: _Table, told: Callable[[str], str]) -> Iterator[str]:
    yield f"{told(_step(info))}\n"
    derived = [
        (row["name"], f"{row['factor']:g}", _format.seconds(row["itl_p99_s"]), f"p99:itl={row['itl_p99_s']:.4g}")
        for row in info["derived"]
    ]
    yield table(_DERIVED, derived)
    published = [
        (row["title"], model, f"p99:itl={row['strict_s']:g}", f"p99:itl={row['relaxed_s']:g}")
        for model, row in info["published"].items()
    ]
    yield table(_PUBLISHED, published, left=2)
    yield from (f"{told(note)}\n" for note in _notes(info))


def _step(info: Mapping[str, Any]) -> str:
    of = info["system"]
    gpus = "".join(f", {name} {of[name]}" for name in ("tp", "pp") if of[name] > 1)
    what = f"{of['model']} on {of['hardware']}{gpus} ({of['latency']})" if "model" in of else of["latency"]
    return (
        f"A decode step of {what}: "
        f"{_format.seconds(info['decode_step_s'])} for {info['batch']} sequences with {info['context_tokens']:,} "
        "tokens of context each."
    )


def _notes(info: Mapping[str, Any]) -> Iterator[str]:
    if (row := info["published"].get(info["system"].get("model"))) is not None:
        ours = 5 * info["decode_step_s"] / row["strict_s"]
        yield f"Five steps of this system are {ours:.3g} times the strict SLO published for {row['title']}."
        if row["note"]:
            yield f"Note: {row['note']}."
    yield from (f"Caution: {warning['message']}." for warning in info["warnings"])
    yield "Sarathi-Serve's capacity also asks for a median scheduling delay of at most 2 s."
