"""Trace-driven benchmarks of LLM serving: workloads, backends, and goodput within latency objectives."""

from harness.results import AnswerResult, RunResult, capacity, compare, load, run, sweep

__all__ = ["AnswerResult", "RunResult", "capacity", "compare", "load", "run", "sweep"]
