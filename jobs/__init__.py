"""The programs behind the ``gaian`` verbs, installed as ``gaian_hpc.jobs``."""
