"""Measures what the tuner chooses among, and fits a machine's profile to it: `jaxring tune`."""
