"""A command whose many options are shown in groups, with a line about each group."""

from collections.abc import Mapping, Sequence

import click

OTHER = "Other options"


class Sectioned(click.Command):
    """`sections` maps a heading to the options under it (without dashes); the rest comes last."""

    def __init__(self, *args: object, sections: Mapping[str, Sequence[str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # handed on as they came
        self._sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the groups one below the other."""
        told = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]  # arguments: in the usage
        records = {str(param.name).replace("_", "-"): param.get_help_record(ctx) for param in told}
        named = {name for names in self._sections.values() for name in names}
        groups = {**self._sections, OTHER: [name for name in records if name not in named]}
        for heading, names in groups.items():
            rows = [record for name in names if (record := records.get(name)) is not None]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
