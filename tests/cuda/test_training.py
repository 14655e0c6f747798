"""Whole training steps with the cuda backend's own code, its kernels run on the CPU, against the cpu backend."""

from pathlib import Path

import numpy as np
import pytest

from gaian_hpc.arrays import ArrayTable, Patch
from gaian_hpc.backends import cuda
from gaian_hpc.data.scene import load_scene
from gaian_hpc.data.synthetic import write_city
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from tests.cuda.emulation.device import DeviceArray, emulated_device
from tests.unit.runs import edits_of, metrics_of, train

FIXED = {"steps": 50, "horizon": 50, "densify.strategy": "none"}


@pytest.fixture(scope="module")
def city(tmp_path_factory) -> Path:
    return write_city(tmp_path_factory.mktemp("city") / "scene", n_views=10, width=64, height=48, n_points=600,
                      spacing=4.0)


def train_on(backend: str, monkeypatch, scene: Path, run: Path, changes: dict):
    """Train with the kernels of a backend; those of cuda on the CPU."""
    monkeypatch.setattr(cuda, "visible_devices", lambda: ("emulated",))
    monkeypatch.setattr(cuda, "open_device", lambda number, **settings: emulated_device(**settings))
    return train(scene, run, {**changes, "backend": backend})


def test_every_phase_of_a_step_agrees_with_the_cpu(city, tmp_path, monkeypatch):
    store = train_on("cpu", monkeypatch, city, tmp_path, {**FIXED, "steps": 5}).store
    view = load_scene(city).views[1]
    patch, rng = Patch(view, 0, 0, view.width, view.height), np.random.default_rng(0)
    results = []
    v_color = rng.standard_normal((3, view.height, view.width)).astype(np.float32)
    for renderer in (Gaussian3D(Gaussian3D.Options()), Gaussian3D.on_device(Gaussian3D.Options(), emulated_device())):
        ids = renderer.cull(view, store.values)
        splats = renderer.splat(view, store.values, ids)
        outputs = renderer.render(patch, splats)
        v_splats = renderer.render_vjp(patch, splats, outputs, OutputGradients(v_color))
        v_points = renderer.splat_vjp(view, store.values, ids, splats, v_splats)
        results.append({"cull": ArrayTable({"ids": ids}), "splat": splats, "render": {"color": outputs.color},
                        "render_vjp": v_splats, "splat_vjp": v_points})
    on_cpu, on_device = results
    for phase, want in on_cpu.items():
        assert set(on_device[phase]) == set(want)
        for name, x in want.items():
            np.testing.assert_allclose(on_device[phase][name], x, atol=1e-4 * np.abs(x).max(),
                                       err_msg=f"{phase} {name}")


def test_fifty_steps_end_where_those_of_the_cpu_end(city, tmp_path, monkeypatch):
    stores = {backend: train_on(backend, monkeypatch, city, tmp_path / backend, FIXED).store
              for backend in ("cpu", "cuda")}
    losses = {backend: np.array([line["loss"] for line in metrics_of(tmp_path / backend) if "loss" in line])
              for backend in stores}
    assert len(losses["cuda"]) == FIXED["steps"]
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=2e-3)
    assert losses["cuda"][-5:].mean() < 0.8 * losses["cuda"][:5].mean()
    # Not the quaternions: points start as spheres, whose gradient of rotation is rounding that Adam scales up.
    for name in ("means", "scales", "opacities", "sh"):
        x = stores["cpu"].raw[name]
        moved = np.abs(stores["cuda"].raw[name] - x)
        assert np.quantile(moved, 0.99) < 1e-2 * np.abs(x).max()


@pytest.mark.parametrize("method", ["gaussian2d", "convex3d"])
def test_other_methods_train_as_on_the_cpu(city, tmp_path, monkeypatch, method):
    for backend in ("cpu", "cuda"):
        train_on(backend, monkeypatch, city, tmp_path / backend,
                 {"steps": 20, "densify.strategy": "none", "method": method})
    losses = [np.array([line["loss"] for line in metrics_of(tmp_path / backend) if "loss" in line])
              for backend in ("cpu", "cuda")]
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)
    assert losses[1][-5:].mean() < 0.9 * losses[1][:5].mean()


def test_deterministic_sums_train_to_the_same_bits_through_edits(city, tmp_path, monkeypatch):
    runs = [train_on("cuda", monkeypatch, city, tmp_path / str(k), {"deterministic": True}).store for k in range(2)]
    assert {"split", "reset"} <= edits_of(tmp_path / "0")
    for name in runs[0].raw:
        np.testing.assert_array_equal(runs[0].raw[name], runs[1].raw[name])


VARIANTS = {
    "many patches": {"patch_size": 16},
    "two views of random background": {"views_per_step": 2, "data.background": "random"},
    "dense adam on white": {"optimizer.kind": "dense", "data.background": "white"},
    "mcmc": {"densify.strategy": "mcmc", "densify.prune_opacity": 0.1, "densify.cap": 700},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_ways_to_train_agree_with_the_cpu(city, tmp_path, monkeypatch, name):
    changes = {"steps": 10, "densify.strategy": "none", **VARIANTS[name]}
    losses = []
    for backend in ("cpu", "cuda"):
        train_on(backend, monkeypatch, city, tmp_path / backend, changes)
        losses.append([line["loss"] for line in metrics_of(tmp_path / backend) if "loss" in line])
    assert len(losses[1]) == 10
    np.testing.assert_allclose(losses[1], losses[0], rtol=5e-3)


@pytest.mark.parametrize("absgrad", [False, True])
def test_density_statistics_agree_with_the_cpu(city, tmp_path, monkeypatch, absgrad):
    changes = {"steps": 5, "densify.absgrad": absgrad}  # the first edit would open step 6
    sums = [train_on(backend, monkeypatch, city, tmp_path / backend, changes).store.statistics
            for backend in ("cpu", "cuda")]
    assert sums[0]["grad_sum"].any()
    np.testing.assert_array_equal(sums[1]["count"], sums[0]["count"])
    np.testing.assert_allclose(sums[1]["grad_sum"], sums[0]["grad_sum"], atol=1e-3 * sums[0]["grad_sum"].max())


def test_a_step_returns_only_counts_and_sums(city, tmp_path, monkeypatch):
    fetched = []
    get = DeviceArray.get
    monkeypatch.setattr(DeviceArray, "get", lambda x: (fetched.append(x.nbytes), get(x))[1])
    store = train_on("cuda", monkeypatch, city, tmp_path, {**FIXED, "steps": 6}).store
    assert all(type(x) is np.ndarray for group in store.columns() for x in group.values())
    n_arrays = sum(len(group) for group in store.columns())
    assert max(fetched[:-n_arrays]) <= 4 * 3 * 20  # a float for each channel and tile of the SSIM maps
    assert len(fetched) == 6 * 2 + n_arrays  # the two sums of a loss, and the points once at the end


def test_a_run_goes_on_with_the_bits_of_one_that_never_stopped(city, tmp_path, monkeypatch):
    changes = {"deterministic": True, "checkpoint.every": 7}
    whole = train_on("cuda", monkeypatch, city, tmp_path / "whole", changes).store
    train_on("cuda", monkeypatch, city, tmp_path / "parts", {**changes, "steps": 10})
    resumed = train(city, tmp_path / "parts", {**changes, "backend": "cuda"}, resume=True).store
    for name in whole.raw:
        np.testing.assert_array_equal(resumed.raw[name], whole.raw[name])
        np.testing.assert_array_equal(resumed.first_moments[name], whole.first_moments[name])
