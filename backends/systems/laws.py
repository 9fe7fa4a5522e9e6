"""Laws: closed forms and invariants that hold for every serving system.

Source: queueing theory (Little, 1961; M/D/1 by Pollaczek, Khinchine and Crommelin), and arithmetic over the shapes of
models.
"""
