"""A recorded trace, or a slice of it."""

from typing import Any

from harness.api import Loaded


class Trace:
    """The options are those of `workloads.replay.load`."""

    def load(self, name: str, **options: Any) -> Loaded:
        """The workload. Raises UsageError naming file, line and column for whatever is wrong with the file."""
        from workloads import replay

        return replay.load(name, **options)
