"""What the simulator is made of: layout of a cluster, event loops, the log of steps."""
