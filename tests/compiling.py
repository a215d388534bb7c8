"""For jobs whose time goes into compiling what then runs for moments: the environment that has XLA take less pains."""

QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"}
