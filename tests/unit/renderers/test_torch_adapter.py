"""A method written in PyTorch, hosted through the adapter: derivatives, and training."""

from dataclasses import dataclass

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install gaian_hpc[torch]")

from gaian_hpc.arrays import ArrayTable, Attribute, Field, LearningRate, Patch, View  # noqa: E402
from gaian_hpc.data.scene import load_scene  # noqa: E402
from gaian_hpc.renderers import base  # noqa: E402
from gaian_hpc.renderers.base import OutputGradients  # noqa: E402
from gaian_hpc.renderers.torch import TorchRenderer  # noqa: E402
from gaian_hpc.training.trainer import Trainer  # noqa: E402
from tests.unit.runs import make_settings, metrics_of  # noqa: E402


@dataclass(frozen=True)
class Options:
    """No settings."""


class Blobs(TorchRenderer):
    """Order-independent soft blobs: colour and alpha by weights that add up."""

    name = "blobs"
    Options = Options
    splat_fields = (Field("at", (2,)), Field("sigmas"), Field("opacities"), Field("colors", (3,)))
    gradient_fields = splat_fields

    def __init__(self, options=None, backend="cpu", absgrad=False):
        rate = LearningRate(0.02)
        self.attributes = (
            Attribute("means", (3,), lambda c: c.positions, LearningRate(1e-3, None, True)),
            Attribute("sizes", (), lambda c: np.log(c.spacing), rate, "exp", "log_sizes"),
            Attribute("opacities", (), lambda c: np.zeros(len(c.positions)), rate, "sigmoid", "logit_opacities"),
            Attribute("colors", (3,), lambda c: c.colors, rate))

    def _camera(self, view, means):
        p = means @ torch.from_numpy(view.viewmat[:3, :3].T.copy()) + torch.from_numpy(view.viewmat[:3, 3].copy())
        z = p[:, 2:].clamp_min(view.near)
        focal = torch.tensor([view.K[0, 0], view.K[1, 1]])
        return p, z, focal * p[:, :2] / z + torch.tensor([view.K[0, 2], view.K[1, 2]])

    def visible(self, view, points):
        p, z, at = self._camera(view, points["means"])
        r = 5 * points["sizes"] * float(view.K[0, 0]) / z[:, 0] + 1
        return ((p[:, 2] > view.near) & (at[:, 0] > -r) & (at[:, 0] < view.width + r) & (at[:, 1] > -r)
                & (at[:, 1] < view.height + r))

    def splat_tensors(self, view, points):
        _, z, at = self._camera(view, points["means"])
        return {"at": at, "sigmas": points["sizes"] * float(view.K[0, 0]) / z[:, 0] + 0.3,
                "opacities": points["opacities"], "colors": points["colors"]}

    def boxes(self, view, splats):
        r = 5 * splats["sigmas"][:, None] + 1
        return torch.cat([splats["at"] - r, splats["at"] + r], dim=1)

    def render_tensors(self, patch, splats):
        x = torch.arange(patch.x0, patch.x0 + patch.width) + 0.5
        y = torch.arange(patch.y0, patch.y0 + patch.height) + 0.5
        dx, dy = x[None, :] - splats["at"][:, :1], y[None, :] - splats["at"][:, 1:]
        q = dx[:, None, :] ** 2 + dy[:, :, None] ** 2
        s = splats["sigmas"][:, None, None]
        w = torch.where(q < 25 * s * s, splats["opacities"][:, None, None] * torch.exp(-q / (2 * s * s)), 0.0)
        total = w.sum(dim=0)
        alpha = 1 - torch.exp(-total)
        color = torch.einsum("mhw,mc->chw", w, splats["colors"]) / (total + 1e-6) * alpha
        return color, alpha, {}


def test_both_vjps_are_those_of_the_forward_pass():
    renderer, rng = Blobs(), np.random.default_rng(0)
    n, view = 12, View(np.eye(4, dtype=np.float32), np.float32([[30, 0, 16], [0, 30, 12], [0, 0, 1]]), 32, 24)
    points = ArrayTable({"means": (rng.normal(size=(n, 3)) * [1, 1, .3] + [0, 0, 4]).astype(np.float32),
                         "sizes": rng.uniform(0.1, 0.3, n).astype(np.float32),
                         "opacities": rng.uniform(0.3, 0.9, n).astype(np.float32),
                         "colors": rng.uniform(0, 1, (n, 3)).astype(np.float32)})
    patch, ids = Patch(view, 0, 0, 32, 24), renderer.cull(view, points)
    v_color, v_alpha = rng.normal(size=(3, 24, 32)).astype(np.float32), rng.normal(size=(24, 32)).astype(np.float32)

    def loss(values):
        out = renderer.render(patch, renderer.splat(view, ArrayTable(values), ids))
        return float((out.color.astype(float) * v_color).sum() + (out.alpha.astype(float) * v_alpha).sum())

    splats = renderer.splat(view, points, ids)
    v_splats = base.splat_gradients(renderer, patch, splats, renderer.render(patch, splats),
                                    OutputGradients(v_color, v_alpha))
    v = base.point_gradients(renderer, view, points, ids, splats, v_splats)
    for name in points:
        direction = rng.normal(size=points[name].shape)
        ahead, behind = ({**points, name: (points[name] + s * 2e-3 * direction).astype(np.float32)} for s in (1, -1))
        gradient = np.zeros(points[name].shape)
        gradient[ids] = v[name]
        expected = (loss(ahead) - loss(behind)) / 4e-3
        assert (gradient * direction).sum() == pytest.approx(expected, rel=0.03, abs=0.05), name


def test_it_trains(city, tmp_path, monkeypatch):
    monkeypatch.setattr(base, "renderer_class", lambda name: Blobs)
    changes = {"method": "blobs", "densify.strategy": "none", "patch_size": 32, "steps": 30}
    scene = load_scene(city, test_every=8)
    Trainer(scene, tmp_path, make_settings(changes), Options()).run()
    losses = [m["loss"] for m in metrics_of(tmp_path) if "loss" in m]
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
