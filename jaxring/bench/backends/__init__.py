"""One module for each kind of peer, with a class `Backend` that prepares a case, runs it, and checks its result."""
