"""`bench serve`: an OpenAI-compatible server in front of the engine, the simulator in real time, or nothing at all."""
