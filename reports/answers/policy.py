"""Policies on the engine and on the simulator, side by side."""

from reports.answers.theory import markdown, text

__all__ = ["markdown", "text"]
