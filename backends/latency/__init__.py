"""How long a step takes, one model a file."""

from harness import registry
from harness.api import LatencyModel
from harness.errors import UsageError


def step_times(spec: str, **system: object) -> LatencyModel:
    """Return the latency model of a spec. Raises UsageError for one that has no step times of its own."""
    model = registry.make("latency", spec, **system)
    if not isinstance(model, LatencyModel):
        raise UsageError(f"'{spec}' repeats the steps of a stored run, and has no step of its own; name another.")
    return model
