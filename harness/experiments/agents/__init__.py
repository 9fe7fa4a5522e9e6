"""How many agents (users of a closed loop of sessions) a system serves at tiers of latency."""
