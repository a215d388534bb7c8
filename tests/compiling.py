"""Most of what the tests compile runs for moments, and compiling it is what takes the time: flags for XLA against that.

They have XLA's CPU compiler make slower machine code, and on jax 0.10 emit fusions as it did before. XLA's passes over
a program's operations are as without them. Where the variable XLA_FLAGS is set, though empty, pytest leaves it:
`XLA_FLAGS= pytest` compiles as users do.
"""

import importlib.metadata

_ALL = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
# XLA ends the process at a flag that it does not know, and later releases do not know this one.
_0_10 = " --xla_cpu_use_fusion_emitters=false"

QUICK = _ALL + (_0_10 if importlib.metadata.version("jaxlib").startswith("0.10.") else "")

# compiler_options of `jax.jit` for programs that do run for long.
LONG = {"xla_backend_optimization_level": "3", "xla_llvm_disable_expensive_passes": False}
