"""A policy of this project as the scheduler of vLLM."""
