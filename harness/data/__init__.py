"""What is stored of a run: schedule, records, run folder."""
