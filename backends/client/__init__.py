"""The parts of the client that measures remote servers: transport below, reading above."""
