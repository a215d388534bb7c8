"""Connections between processes that have proved to each other that they know the job's secret."""
