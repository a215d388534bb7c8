"""One custom call: fusion with others, donation of operands, the program's fingerprint, and its name in XLA."""
