"""One module for each kind of peer: a class `Backend` that prepares a case, runs it, and checks its result."""
