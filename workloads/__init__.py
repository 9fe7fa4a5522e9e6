"""Streams of requests: arrivals, lengths, content, trace readers and presets."""
