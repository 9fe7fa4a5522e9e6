"""One figure a file, plotly objects."""
