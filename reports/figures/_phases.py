"""How the phases of a request are called and drawn: the same colour and hatch in every figure of them."""

from typing import NamedTuple

from reports import _stages
from reports.figures import _style as style


class Look(NamedTuple):
    """Name, colour, and the hatch that says the same as the colour."""

    name: str
    color: str
    hatch: str


LOOKS = {
    _stages.LATENESS: Look("client lateness", style.GREY, "."),
    _stages.QUEUE: Look("queue", style.PURPLE, "/"),
    _stages.FIRST: Look("queue and prefill", style.VERMILLION, "/"),
    _stages.PREFILL: Look("prefill", style.VERMILLION, ""),
    _stages.HANDOFF: Look("hand-off", style.GREEN, "|"),
    _stages.STALL: Look("stall", style.OCHRE, "x"),
    _stages.DECODE: Look("decode", style.BLUE, "\\"),
}


def marker(key: str) -> dict[str, object]:
    """The `marker` of the bars of a phase."""
    return marked(LOOKS[key])


def marked(look: Look) -> dict[str, object]:
    """The `marker` of bars: hatched in their colour on a faint ground of the same."""
    pattern = {"shape": look.hatch, "size": 6, "solidity": 0.35, "fgcolor": look.color, "fillmode": "replace"}
    ground = {"bgcolor": style.faint(look.color)} if look.hatch else {}
    return {"color": look.color, "pattern": {**pattern, **ground}, "line": {"color": look.color, "width": 1}}
