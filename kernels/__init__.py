"""The CUDA C++ sources, as package data; there is no Python here."""
