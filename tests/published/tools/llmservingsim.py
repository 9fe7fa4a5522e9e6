"""LLMServingSim: an event simulator over profiled operators, built from source with astra-sim (C++)."""

REQUIREMENTS = ()
RELEASED = "2026-08, commit 5daddb2"


def predict(row):
    """Why there is no answer: it is no package, and its tables are of two cards that no row has."""
    return "its tables are of RTX 4090 and RTX PRO 6000"
