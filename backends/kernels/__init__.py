"""How long the kernels of one step take on a GPU: bounds by its peaks, measured tables, and their sum over a model."""
