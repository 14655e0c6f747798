"""Whole training steps with the cuda backend's own code, its kernels run on the CPU, against the cpu backend."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gaian_hpc.arrays import ArrayTable, Patch
from gaian_hpc.backends import cuda
from gaian_hpc.data.scene import load_scene
from gaian_hpc.data.synthetic import write_city
from gaian_hpc.errors import BackendError
from gaian_hpc.jobs.bench import run_bench_step
from gaian_hpc.jobs.evaluate import run_evaluate
from gaian_hpc.jobs.render import run_render
from gaian_hpc.renderers.base import OutputGradients
from gaian_hpc.renderers.gaussian3d import Gaussian3D
from gaian_hpc.training.densify.default import GradientDensity
from tests.cuda.emulation.device import DeviceArray, EmulatedDevice, EmulatedMemoryError, StrictCupy, emulated_device
from tests.unit.runs import edits_of, make_settings, metrics_of, train

MAP_LOSSES = {"normal_from": 0, "distortion_weight": 1.0}
FIXED = {"steps": 50, "horizon": 50, "densify.strategy": "none"}


@pytest.fixture(scope="module")
def city(tmp_path_factory) -> Path:
    return write_city(tmp_path_factory.mktemp("city") / "scene", n_views=10, width=64, height=48, n_points=600,
                      spacing=4.0)


def train_on(backend: str, monkeypatch, scene: Path, run: Path, changes: dict, options: dict | None = None):
    """Train with the kernels of a backend; those of cuda on the CPU."""
    monkeypatch.setattr(cuda, "visible_devices", lambda: ("emulated",))
    monkeypatch.setattr(cuda, "open_device", lambda number=0, **settings: emulated_device(**settings))
    return train(scene, run, {**changes, "backend": backend}, options)


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


def test_losses_of_maps_train_as_on_the_cpu(city, tmp_path, monkeypatch):
    losses = []
    for backend in ("cpu", "cuda"):
        train_on(backend, monkeypatch, city, tmp_path / backend,
                 {**FIXED, "steps": 10, "method": "gaussian2d", "patch_size": 32}, MAP_LOSSES)
        losses.append([line["loss"] for line in metrics_of(tmp_path / backend) if "loss" in line])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)


def test_masked_pixels_count_as_on_the_cpu(city, tmp_path, monkeypatch):
    scene, rng, losses = tmp_path / "scene", np.random.default_rng(0), []
    shutil.copytree(city, scene)
    (scene / "masks").mkdir()
    for picture in sorted((scene / "images").iterdir()):
        mask = np.where(rng.random((6, 8)) < 0.7, 255, 0).astype(np.uint8).repeat(8, 0).repeat(8, 1)
        Image.fromarray(mask).save(scene / "masks" / f"{picture.name}.png")
    for backend in ("cpu", "cuda"):
        train_on(backend, monkeypatch, scene, tmp_path / backend, {**FIXED, "steps": 10, "patch_size": 32})
        losses.append([line["loss"] for line in metrics_of(tmp_path / backend) if "loss" in line])
    train_on("cpu", monkeypatch, city, tmp_path / "whole", {**FIXED, "steps": 10, "patch_size": 32})
    assert losses[0][0] != next(line["loss"] for line in metrics_of(tmp_path / "whole") if "loss" in line)
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)


def test_too_many_points_for_the_gpu_tell_how_many_fit(city, tmp_path, monkeypatch):
    monkeypatch.setattr(EmulatedDevice, "size", 1 << 20)
    n_calls, empty = [], StrictCupy.empty

    def full(shape, dtype):
        n_calls.append(1)
        if len(n_calls) > 100:
            raise EmulatedMemoryError
        return empty(shape, dtype)

    monkeypatch.setattr(StrictCupy, "empty", staticmethod(full))
    with pytest.raises(BackendError, match=r"the GPU's 1 MiB are too few for 1\d\d points of \d+ bytes and a step on "
                                           r"them; about \d+ points fit a GPU this way: bound them \(--densify.cap\)"):
        train_on("cuda", monkeypatch, city, tmp_path, FIXED)


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


STEPS = {
    "one patch": ({}, {}),
    "two views in many patches": ({"patch_size": 32, "views_per_step": 2}, {}),
    "noise": ({"densify.strategy": "mcmc", "densify.start": 20, "densify.cap": 700}, {}),
    "losses of maps": ({"method": "gaussian2d"}, MAP_LOSSES),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_returns_only_counts_and_sums(city, tmp_path, monkeypatch, name):
    fetched, (changes, options) = [], STEPS[name]
    get = DeviceArray.get
    monkeypatch.setattr(DeviceArray, "get", lambda x, **to: (fetched.append(x.nbytes), get(x, **to))[1])
    store = train_on("cuda", monkeypatch, city, tmp_path, {**FIXED, "steps": 6, **changes}, options).store
    assert all(type(x) is np.ndarray for group in store.columns() for x in group.values())
    n_arrays = 1 + sum(len(group) for group in store.columns())
    assert max(fetched[:-n_arrays]) <= 4 * 3 * 2 * 32  # a float for each view, channel and tile of the loss, and maps'
    if name == "one patch":
        assert len(fetched) == 6 * 2 + n_arrays  # tiles, the sums of a loss, and the points once at the end


def test_an_edit_fetches_only_those_that_may_multiply(city, tmp_path, monkeypatch):
    sizes = []
    edit = GradientDensity.edit

    def watched(density, store, step):
        with monkeypatch.context() as patched:
            fetched = []
            get = DeviceArray.get
            patched.setattr(DeviceArray, "get", lambda x, **to: (fetched.append(x.nbytes), get(x, **to))[1])
            report = edit(density, store, step)
        if report is not None:
            sizes.append((sum(fetched), store.n * store.bytes_per_point(), report.split + report.cloned))
        return report

    monkeypatch.setattr(GradientDensity, "edit", watched)
    train_on("cuda", monkeypatch, city, tmp_path, {"densify.grad_threshold": 1e-3})
    assert sum(n for _, _, n in sizes) > 0
    assert all(fetched < 0.5 * whole for fetched, whole, _ in sizes)


def test_a_run_goes_on_with_the_bits_of_one_that_never_stopped(city, tmp_path, monkeypatch):
    changes = {"deterministic": True, "checkpoint.every": 7}
    whole = train_on("cuda", monkeypatch, city, tmp_path / "whole", changes).store
    train_on("cuda", monkeypatch, city, tmp_path / "parts", {**changes, "steps": 10})
    resumed = train(city, tmp_path / "parts", {**changes, "backend": "cuda"}, resume=True).store
    for name in whole.raw:
        np.testing.assert_array_equal(resumed.raw[name], whole.raw[name])
        np.testing.assert_array_equal(resumed.first_moments[name], whole.first_moments[name])


def test_verbs_render_evaluate_and_time_on_the_gpu(city, tmp_path, monkeypatch, capsys):
    train_on("cuda", monkeypatch, city, tmp_path / "run", {**FIXED, "steps": 5})
    assert run_render(tmp_path / "run", output=tmp_path / "pictures") == 0
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 2
    capsys.readouterr()
    assert run_evaluate(tmp_path / "run", as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["psnr"] > 5
    settings = make_settings({"backend": "cuda", "data.cache_mb": 16})
    assert run_bench_step(city, settings, Gaussian3D.Options(), repeats=2, as_json=True) == 0
    phases = json.loads(capsys.readouterr().out)["phases_ms"]
    assert {"cull", "splat", "render", "loss", "render_vjp", "splat_vjp", "update"} <= set(phases)
    assert all(phases[name] > 0 for name in ("cull", "render", "update"))


def test_a_run_of_a_gpu_is_rendered_by_the_cpu_where_there_is_none(city, tmp_path, monkeypatch, caplog, capsys):
    train_on("cuda", monkeypatch, city, tmp_path, {**FIXED, "steps": 3})
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert run_evaluate(tmp_path, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["psnr"] > 5
    assert "was trained with backend cuda; it is rendered by the cpu, because: needs CuPy" in caplog.text.replace(
        "backend cuda needs CuPy", "needs CuPy")
    changes = {**FIXED, "steps": 5, "backend": "cpu"}
    assert train(city, tmp_path, changes, resume=True).step == 5
    assert "goes on with backend cpu, after cuda" in caplog.text


def test_methods_of_arrays_are_those_of_cupy(city, tmp_path, monkeypatch):
    cupy = pytest.importorskip("cupy")
    used = set()

    def noted(x, name):
        used.add(name)
        return object.__getattribute__(x, name)

    monkeypatch.setattr(DeviceArray, "__getattribute__", noted, raising=False)
    for strategy in ("default", "mcmc"):
        train_on("cuda", monkeypatch, city, tmp_path / strategy,
                 {"densify.strategy": strategy, "patch_size": 32, "views_per_step": 2, "steps": 12})
    train_on("cuda", monkeypatch, city, tmp_path / "maps", {**FIXED, "steps": 2, "method": "gaussian2d"}, MAP_LOSSES)
    used -= {"ctypes", "__array_interface__", "__array_struct__"}  # of the stand-in's own
    assert {"astype", "reshape", "get"} <= used
    assert not {name for name in used if not hasattr(cupy.ndarray, name)}
