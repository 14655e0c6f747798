"""Train point-based differentiable renderers of large scenes on many MPI ranks."""

__version__ = "0.1.0"
