"""What the tiers of a memory hierarchy stored and how long they took, as run.json counts it of the whole run."""

from typing import Any

from harness.data.folder import Run
from reports import _data, _format
from reports._format import clean, in_figure
from reports.figures import style
from reports.figures.drawing import Drawing
from reports.figures.stages import Phase

NO_TIERS = "The backend had no tiers of KV memory; give --backend sim:prefix_cache=on,tiers=[dram+ssd]."


def tiers(run: Run) -> Drawing | str:
    """Bars by tier: prompt tokens that it had at their first lookup (%), mean time of a load, and GB of both ways."""
    rows: Any = run.info.backend.get("tiers", ())
    if not rows or not run.requests.num_rows:
        return NO_TIERS if run.requests.num_rows else _data.EMPTY
    names = [in_figure(row["name"]) for row in rows]
    found = [row["hit_tokens"] / max(1, row["queried_tokens"]) for row in rows]
    loads_s = [row["wait_s"] / max(1, row["loads"]) for row in rows]
    drawn = style.panels([1, 1, 1], 520)
    for panel, phase, values in (
        (1, Phase("found", style.GREEN, ""), [100 * share for share in found]),
        (2, Phase("mean load", style.PURPLE, "/"), loads_s),
        (3, Phase("loaded", style.BLUE, "\\"), [row["load_bytes"] / 1e9 for row in rows]),
        (3, Phase("written", style.OCHRE, "x"), [row["store_bytes"] / 1e9 for row in rows]),
    ):
        hover = f"%{{x}}, {phase.name}: %{{y:.4r}}"
        drawn.trace("bar", row=panel, x=names, y=values, name=phase.name, marker=phase.marker, hovertemplate=hover)
    drawn.layout.update(barmode="group", bargap=0.5)
    for panel, title in enumerate(("prompt tokens<br>found (%)", "mean time of<br>a load (s)", "copied<br>(GB)"), 1):
        x = style.axis("tier, the fastest first" if panel == 3 else "", type="category")
        style.axes(drawn, x, style.axis(title, rangemode="tozero"), panel)
    parts = zip((clean(row["name"], 60) for row in rows), found, loads_s, strict=True)
    return style.done(drawn, style.finding(
        {name: [f"{_format.share(share)} of the prompt tokens", f"{_format.seconds(load_s)} a load"]
         for name, share, load_s in parts}
    ), ["Found at the first lookup of a prompt, beyond what the prefix cache of its replica stored."])  # fmt: skip
