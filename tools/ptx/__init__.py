"""Translates the PTX that nvcc emits for the kernels to C++ that runs on the tests' SIMT machine (ffi/cuda/sim).

parse.py reads the text, forms.py is the table of instructions, and emit.py writes C++. What an instruction does to
memory is in ffi/cuda/sim/ptx.
"""
