"""Progressive spherical harmonics: methods whose active degree rises while they train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, Self


class ProgressiveDegree(ABC):
    """Base of methods with ``options`` that have ``sh_degree`` and ``sh_every``, and an active ``degree``.

    A method says in :meth:`_with` how it is built again with other options or another degree.
    """

    options: Any
    degree: int

    @abstractmethod
    def _with(self, options: Any, degree: int) -> Self:
        """Return this renderer built again."""

    def at_degree(self, degree: int) -> Self:
        """Return this renderer with ``degree`` active SH bands (at most ``options.sh_degree``)."""
        degree = min(degree, self.options.sh_degree)
        return self if degree == self.degree else self._with(self.options, degree)

    def at_step(self, step: int) -> Self:
        """Return the renderer of a training step: the active degree rises by one every ``sh_every`` steps."""
        every = self.options.sh_every
        return self.at_degree(step // every if every else self.options.sh_degree)

    def with_options(self, **changes: Any) -> Self:
        """Return this renderer with some options replaced."""
        return self._with(replace(self.options, **changes), self.degree)
