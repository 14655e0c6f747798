"""Slow oracles of the renderers in plain numpy, by default in float64, against which the backends are tested.

Every formula is written once more here, without tiles, culling boxes or fused loops, so that it shares no code and no
shortcut with the backends. The precision is a parameter: the same formulas in float32 say how many digits an
input leaves to any float32 implementation.
"""

from .compositing import composite, composite_vjp
from .harmonics import sh_basis, sh_basis_jacobian
from .projection import covariances, covariances_vjp, half_widths, project, project_vjp
from .renderer import ReferenceGaussian3D, central_difference

__all__ = ["ReferenceGaussian3D", "central_difference", "composite", "composite_vjp", "covariances",
           "covariances_vjp", "half_widths", "project", "project_vjp", "sh_basis", "sh_basis_jacobian"]
