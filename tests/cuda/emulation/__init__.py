"""Execution of CUDA kernels on the CPU, from the exact text that a GPU would run."""
