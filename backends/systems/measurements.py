"""Measurements of real engines: errors of simulated latencies on public results that no fit has used.

Source: each row names its own: LLMServingSim, aiconfigurator, APEX, DistServe.
"""
