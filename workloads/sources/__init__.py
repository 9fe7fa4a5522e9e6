"""Where the traffic of a run comes from: one plug-in a way of naming it."""
