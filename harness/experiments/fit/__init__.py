"""Latency models from measurements: step logs, results of requests, or a live endpoint.

A fit is done on a part of the rows and scored on the others; it says how far each constant is known, and refuses where
the rows do not tell two constants apart.
"""
