"""The CUDA engine: its communicators, its planner and its service."""
