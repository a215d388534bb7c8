"""How a machine is put together: CPUs, PCI, NICs, GPUs, how far they are apart, and NCCL's XML for it."""
