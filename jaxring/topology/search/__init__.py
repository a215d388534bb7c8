"""How fast a fabric can be at a collective, and rings and trees that come near."""
