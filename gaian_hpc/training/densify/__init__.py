"""Density control: strategies that clone, split, prune and move points, found by name."""

from __future__ import annotations

from ...settings import DensifySettings
from .base import DensityControl, EditReport, FixedPoints, Gather, one_rank, resolve_stop
from .default import GradientDensity
from .geometry import Split
from .mcmc import MarkovDensity

__all__ = ["DensityControl", "EditReport", "make_density", "resolve_stop"]


def make_density(settings: DensifySettings, total_steps: int, extent: float, seed: int, views_per_step: int = 1,
                 gather: Gather = one_rank, split: Split | None = None) -> DensityControl:
    """Return the density control that ``settings.strategy`` names.

    Parameters
    ----------
    settings : DensifySettings
    total_steps : int
        Steps of the run, from which ``stop`` = 0 follows.
    extent : float, world units
    seed : int
    views_per_step : int
        Views B of a unit, whose losses are averaged.
    gather : callable
        ``gather(rows) -> rows of all ranks``, collective; the identity for one rank.
    split : Split, optional
        How points multiply that are no Gaussians of ``means``, ``quats`` and ``scales``.
    """
    stop = resolve_stop(settings, total_steps)
    if settings.strategy == "default":
        return GradientDensity(settings, stop, extent, seed, views_per_step, gather, split)
    if settings.strategy == "mcmc":
        return MarkovDensity(settings, stop, seed, gather)
    return FixedPoints(settings.cap, seed, gather)
