"""A preset, a preset file or a lengths spec, with parts that replace its own.

A recorded trace, or a slice of it.
"""

from typing import Any

from harness.api import Loaded


class Preset:
    """The options are those of `workloads.catalog.load`."""

    def load(self, name: str, **options: Any) -> Loaded:
        """The workload. Raises UsageError for unknown names and for parts that do not go together."""
        from workloads import catalog

        return catalog.load(name, **options)


class Trace:
    """The options are those of `workloads.replay.load`."""

    def load(self, name: str, **options: Any) -> Loaded:
        """The workload. Raises UsageError naming file, line and column for whatever is wrong with the file."""
        from workloads import replay

        return replay.load(name, **options)
