"""Placement: which replicas of which parallelism carry most within the SLO per GPU, per money or per watt.

Source: Zhong et al., DistServe, OSDI 2024, section 4, algorithms 1 (high node affinity) and 2 (low).
"""
