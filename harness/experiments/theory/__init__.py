"""Closed forms that need no run: what follows from a latency model or from published definitions alone."""
