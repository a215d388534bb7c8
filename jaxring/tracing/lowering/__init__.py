"""One custom call: what it is fused with, what it may write over, which program it belongs to and how XLA names it."""
