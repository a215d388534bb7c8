"""`python -m benchmarks.gpu`: builds, tests and measures the CUDA engine on a machine with a GPU (`suite.py`)."""
