"""What carries out a batch for real."""
