"""One offline HTML file: verdict, tables and figures of a run, with plotly.js inside and no request to any host."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from harness.data.folder import Run
from harness.errors import no_such
from reports import _box, _data, _page, _sliders, _verdict, _view, figures
from reports._page import Part

SECTIONS = {
    "warnings": "Warnings",
    "percentiles": "Percentiles",
    "ran": "What was run",
    "figures": "Figures",
    "rates": "Other rates",
    figures.FIDELITY: "Fidelity",
    "client": "Client",
    "server": "Server",
    "definitions": "Definitions",
    "repeat": "Repeat it",
}
"""Parts of the page by their anchor, in order; the verdict stands above all of them."""


@dataclass(frozen=True, slots=True)
class Html:
    """The page of a run; the same run gives the same bytes.

    `plotly_bundle` is a plotly.js file to use instead of the one that the installed plotly brings; `plain` leaves
    it uncompressed, for browsers that cannot unpack it. Of its `sections` only those named, where any are.
    """

    plotly_bundle: str | None = None
    plain: bool = False
    sections: tuple[str, ...] = ()

    def render(self, run: Run) -> str:
        """The whole file as text.

        Raises UsageError when the plotly bundle cannot be read, and for a section that the page does not have.
        """
        view = _view.view(run)
        shown = chosen(self.sections, remote=bool(view.client))
        return _page.render(
            "page.html.j2",
            parts(run, shown),
            bundle=self.plotly_bundle,
            plain=self.plain,
            view=view,
            box=_box.box(run, view),
            rates=_verdict.several_rates(run),
            sections=shown,
            fidelity=[key for key, module in figures.modules().items() if module.SECTION == figures.FIDELITY],
        )


def parts(run: Run, sections: Collection[str] = tuple(SECTIONS)) -> list[Part]:
    """The figures of a run in the order of the page: those of the `sections`."""
    shown = _data.measured(run)
    found = []
    for key, module in figures.modules().items():
        if (figures.FIDELITY if module.SECTION == figures.FIDELITY else "figures") in sections:
            drawn = module.figure(run if figures.whole(module) else shown)
            if drawn == _data.EMPTY and run.info.source.per_request is False:
                drawn = _data.AGGREGATES  # the file never had requests: nothing on how to send more
            found.append(_page.part(key, module.TITLE, drawn))
    sliders = _sliders.of_run(shown) if "figures" in sections else None
    place = next((i for i, part in enumerate(found) if part.key == "slo_plane"), 0)
    return found if sliders is None else [*found[:place], sliders, *found[place:]]


def chosen(asked: Sequence[str], *, remote: bool) -> dict[str, str]:
    """The sections of the page with their titles: all that this run has, or those asked for.

    Raises UsageError for a name that is none.
    """
    there = {key: title for key, title in SECTIONS.items() if remote or key not in ("client", "server")}
    for name in asked:
        if name not in there:
            raise no_such("section", name, there)
    return {key: title for key, title in there.items() if not asked or key in asked}
