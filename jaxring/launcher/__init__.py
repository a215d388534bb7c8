"""Starts the processes of a job on this host, watches them, and tells which of them failed first."""
