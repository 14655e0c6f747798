"""Checks of the package against golden vectors: files of inputs, outputs and gradients from an independent source."""
