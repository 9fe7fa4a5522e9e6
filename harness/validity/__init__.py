"""What a run proves: physics, fidelity of the sending, overload, checks, warnings, verdict."""
