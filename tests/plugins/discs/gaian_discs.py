"""Soft discs that face the camera: a method for gaian_hpc, in numpy alone."""

from dataclasses import dataclass

import numpy as np

from gaian_hpc.arrays import ArrayTable, Attribute, Field, LearningRate
from gaian_hpc.renderers.base import Outputs

REACH = 3.0  # standard deviations that a disc is drawn to


@dataclass(frozen=True)
class Options:
    """Settings of the method; ``size`` is that of a start point beside the distance to its neighbours."""

    size: float = 1.0
    lr_means: float = 1e-3


class Discs:
    """alpha = opacity · exp(−r²/2σ²), σ the point's size over its depth; composited front to back."""

    name = "discs"
    Options = Options
    splat_fields = (Field("at", (2,)), Field("sigmas"), Field("depths"), Field("opacities"), Field("colors", (3,)))
    gradient_fields = tuple(f for f in splat_fields if f.name != "depths")

    def __init__(self, options, backend="cpu"):
        flat = LearningRate(0.02)
        self.attributes = (
            Attribute("spots", (3,), lambda c: c.positions, LearningRate(options.lr_means, None, True)),
            Attribute("sizes", (), lambda c: np.log(c.spacing * options.size), flat, "exp", "log_sizes"),
            Attribute("opacities", (), lambda c: np.zeros(len(c.positions)), flat, "sigmoid", "logit_opacities"),
            Attribute("colors", (3,), lambda c: np.log((c.colors + 0.01) / (1.01 - c.colors)), flat, "sigmoid"))

    def at_step(self, step):
        return self

    def centers(self, points):
        return points["spots"]

    def _project(self, view, points, ids):
        p = points["spots"][ids] @ view.viewmat[:3, :3].T + view.viewmat[:3, 3]
        focal = np.array([view.K[0, 0], view.K[1, 1]], np.float32)
        z = np.maximum(p[:, 2:], np.float32(view.near))
        return p, z, focal, focal * p[:, :2] / z + view.K[:2, 2]

    def cull(self, view, points):
        ids = np.arange(len(points["spots"]))
        p, z, focal, at = self._project(view, points, ids)
        r = REACH * points["sizes"] * focal[0] / z[:, 0] + 1
        inside = ((at + r[:, None] > 0) & (at - r[:, None] < [view.width, view.height])).all(axis=1)
        return np.flatnonzero(inside & (p[:, 2] > view.near)).astype(np.int64)

    def splat(self, view, points, ids):
        p, z, focal, at = self._project(view, points, ids)
        return ArrayTable({"at": at, "sigmas": points["sizes"][ids] * focal[0] / z[:, 0] + np.float32(0.3),
                           "depths": p[:, 2].copy(), "opacities": points["opacities"][ids],
                           "colors": points["colors"][ids]}, len(ids))

    def splat_vjp(self, view, points, ids, splats, v):
        p, z, focal, _ = self._project(view, points, ids)
        v_x = v["at"] * focal / z
        v_z = -(v["at"] * focal * p[:, :2]).sum(axis=1) / z[:, 0] ** 2
        v_z -= v["sigmas"] * points["sizes"][ids] * focal[0] / z[:, 0] ** 2
        v_spots = np.concatenate([v_x, v_z[:, None]], axis=1) @ view.viewmat[:3, :3]
        return ArrayTable({"spots": v_spots, "sizes": v["sigmas"] * focal[0] / z[:, 0], "opacities": v["opacities"],
                           "colors": v["colors"]}, len(ids))

    def footprints(self, view, splats):
        r = (REACH * splats["sigmas"] + 1)[:, None]
        return np.concatenate([splats["at"] - r, splats["at"] + r], axis=1)

    def _disc(self, patch, splats, i):
        x0, y0, x1, y1 = self.footprints(patch.view, splats.take(np.array([i])))[0]
        xs = slice(*np.clip([x0 - patch.x0, x1 - patch.x0 + 1], 0, patch.width).astype(int))
        ys = slice(*np.clip([y0 - patch.y0, y1 - patch.y0 + 1], 0, patch.height).astype(int))
        dx = np.arange(xs.start, xs.stop) + patch.x0 + 0.5 - splats["at"][i, 0]
        dy = (np.arange(ys.start, ys.stop) + patch.y0 + 0.5 - splats["at"][i, 1])[:, None]
        falloff = np.exp(-(dx * dx + dy * dy) / (2 * splats["sigmas"][i] ** 2))
        return (ys, xs), dx, dy, falloff, np.minimum(splats["opacities"][i] * falloff, 0.99)

    def render(self, patch, splats):
        color = np.zeros((3, patch.height, patch.width))
        left, steps = np.ones((patch.height, patch.width)), []
        for i in np.argsort(splats["depths"], kind="stable"):
            at, dx, dy, falloff, a = self._disc(patch, splats, i)
            w = left[at] * a
            color[:, *at] += w * splats["colors"][i][:, None, None]
            steps.append((i, at, dx, dy, falloff, a, left[at].copy()))
            left[at] -= w
        return Outputs(color.astype(np.float32), (1 - left).astype(np.float32), {}, (steps, left))

    def render_vjp(self, patch, splats, outputs, v_out):
        steps, left = outputs.saved
        v = {f.name: np.zeros((splats.n_rows, *f.shape)) for f in self.gradient_fields}
        v_left = -(np.zeros_like(left) if v_out.alpha is None else v_out.alpha) * np.ones_like(left)
        for i, at, dx, dy, falloff, a, before in reversed(steps):
            along = (v_out.color[:, *at] * splats["colors"][i][:, None, None]).sum(axis=0)
            v["colors"][i] = (v_out.color[:, *at] * before * a).sum(axis=(1, 2))
            v_a = before * (along - v_left[at])
            v_left[at] = along * a + v_left[at] * (1 - a)
            g = np.where(a < 0.99, v_a * falloff, 0.0)
            v["opacities"][i] = g.sum()
            g *= splats["opacities"][i] / splats["sigmas"][i] ** 2
            v["at"][i] = (g * dx).sum(), (g * dy).sum()
            v["sigmas"][i] = (g * (dx * dx + dy * dy)).sum() / splats["sigmas"][i]
        return ArrayTable({name: x.astype(np.float32) for name, x in v.items()}, splats.n_rows)
