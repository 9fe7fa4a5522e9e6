"""Turn a request into timed tokens: the built-in engine, the simulator, the null backend."""
