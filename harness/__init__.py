"""Trace-driven benchmarks of LLM serving: workloads, backends, and goodput within latency objectives."""

from harness.results import AnswerResult, RunResult, capacity, compare, load, run, sweep
from harness.version import __version__

__all__ = ["AnswerResult", "RunResult", "__version__", "capacity", "compare", "load", "run", "sweep"]
