"""The highest rate that keeps a service level objective, with its interval, from as few requests as it takes."""
