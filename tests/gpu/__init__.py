"""Programs for a machine with a GPU; ``run.sh`` runs them all."""
