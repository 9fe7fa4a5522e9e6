"""Validation: simulated numbers beside measured ones, scored on measurements that the calibration did not see."""
