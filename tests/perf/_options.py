"""The options of a measuring script, each a name and its default; what they mean stands in the script's docstring."""

import argparse
from typing import Any


def parsed(doc: str | None, **defaults: Any) -> argparse.Namespace:
    """Read the command line. False is a switch, and a type that of an option without a default."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(option, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(option, type=default)
        else:
            parser.add_argument(option, type=type(default), default=default, help="default %(default)s")
    return parser.parse_args()
