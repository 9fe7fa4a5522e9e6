"""How an arrival becomes a task of several requests: turns of a conversation, stages of an agent's work."""
