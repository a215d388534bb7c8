"""The JAX side: from a call in a traced program to the custom call that the compiler sees."""
