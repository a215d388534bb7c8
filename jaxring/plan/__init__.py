"""Planning: schedules of steps, the algorithms that make them, their verifier, their cost model and the tuner."""
