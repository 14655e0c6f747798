"""Checkpoints (``FORMAT.md``) and exchange files; import the modules, this package loads none of them."""
