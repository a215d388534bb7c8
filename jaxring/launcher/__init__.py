"""Starts the processes of a job on this host, watches them, and reports which of them failed first."""
