"""Stored runs under other objectives: nothing is run again, because the times of all tokens are stored."""
