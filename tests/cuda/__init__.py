"""Tests of the cuda backend: its kernels run on the CPU here; see ``emulation``."""
