"""The golden files against the cpu backend, and the checker itself against files and implementations that are wrong."""

from dataclasses import replace

import numpy as np
import pytest

from gaian_hpc.renderers.reference import ReferenceGaussian3D, compositing, projection
from tests.check_golden import main
from tests.golden import gaussian3d, synthetic
from tests.golden.cases import load_case
from tests.golden.report import check, implementation_of

FILES = ("3dgs_edgezoo_50x38", "3dgs_garden2000_128x96", "3dgs_overlap150_deg1_61x45", "3dgs_overlap200_64x48",
         "3dgs_projection300_80x60", "3dgs_small8_32x32", "sh_deg0to3", "adam_40x3", "ssim_random_40x33",
         "ssim_smooth_64x48")


def golden_file(shared_dir, name):
    """Return the path of a shared golden file or skip the test."""
    path = shared_dir / "golden" / f"{name}.npz"
    if not path.is_file():
        pytest.skip(f"no golden file {name}")
    return path


@pytest.fixture(scope="module")
def case():
    """A small complete case of the oracle's making."""
    return synthetic.make_case(synthetic.scene(3, n=30, width=32, height=27, degree=2, scale=0.2))


@pytest.fixture
def case_file(case, tmp_path):
    """The same case as a file of a name that says nothing."""
    return synthetic.save_case(case, tmp_path / "x.npz")


def verdicts(case, implementation):
    """Return the verdicts on a gaussian3d scene by array name."""
    measured = gaussian3d.measure_scene(case, implementation)
    costs = gaussian3d.costs_of(case, gaussian3d.measure_scene, 3)
    return {c.name: c for c in gaussian3d.compare_all(case, measured, costs, exact=False)}


@pytest.mark.parametrize("name", FILES)
def test_the_cpu_backend_agrees_with_a_golden_file(shared_dir, name):
    report = check(golden_file(shared_dir, name))
    assert report.ok, "\n".join(report.lines())


RANDOM_SCENES = {
    "one point": dict(n=1),
    "a crowd that stops pixels early": dict(n=150, scale=0.5, spread=0.4),
    "points smaller than a pixel": dict(n=60, scale=0.003, spread=0.5),
    "no blur to speak of": dict(n=30, eps2d=0.05),
    "a near plane among the points": dict(n=60, near=4.0),
    "a far plane among the points": dict(n=60, far=4.0),
    "a picture of one tile": dict(n=30, width=16, height=16),
    "a picture narrower than a tile": dict(n=30, width=5, height=70, scale=0.4),
    "a wide spread around the camera": dict(n=80, spread=4.0, scale=0.4),
}


@pytest.mark.parametrize("settings", RANDOM_SCENES.values(), ids=RANDOM_SCENES)
def test_the_cpu_backend_agrees_with_the_oracle_on_a_random_scene(settings):
    case = synthetic.make_case(synthetic.scene(14, degree=3, **settings))
    missed = [c for c in verdicts(case, implementation_of("cpu")).values() if not c.ok]
    assert not missed


def test_a_right_file_passes_whatever_its_name(case_file, capsys):
    assert main([str(case_file)]) == 0
    printed = capsys.readouterr().out
    assert "gaussian3d scene" in printed and "MISS" not in printed
    assert "not provided: n_contrib, aa_n_contrib" in printed


@pytest.mark.parametrize("name", ["image", "alpha", "aa_image", "conics", "g_means", "g_sh", "g_quats", "aa_g_scales",
                                  "gdepth_opacities", "absgrad_means2d", "g_background", "loss", "radii"])
def test_a_single_wrong_entry_is_a_miss(case, tmp_path, capsys, name):
    x = case[name].copy()
    step = 4 if x.dtype.kind in "iu" else 3e-4 * np.abs(x).max()
    where = np.unravel_index(np.abs(x).argmax(), x.shape)
    x[where] += step
    wrong = replace(case, arrays=case.arrays | {name: x, "fragile": np.zeros_like(case["fragile"])})
    assert main([str(synthetic.save_case(wrong, tmp_path / "wrong.npz"))]) == 1
    assert f"MISS {name} " in capsys.readouterr().out


def test_an_array_that_is_off_everywhere_by_little_is_a_miss(case):
    measured = verdicts(replace(case, arrays=case.arrays | {"g_opacities": case["g_opacities"] * 1.0005}),
                        implementation_of("cpu"))
    assert not measured["g_opacities"].ok and measured["g_means"].ok


def test_an_implementation_that_yields_nan_misses(case):
    class Broken(ReferenceGaussian3D):
        def splat(self, view, points, ids):
            splats = super().splat(view, points, ids)
            splats["colors"][:] = np.nan
            return splats

    build = gaussian3d.Implementation(lambda *options: Broken(Broken.Options(*options)), np.float64)
    found = verdicts(case, build)
    assert not found["colors"].ok and not found["image"].ok


WRONG_CONSTANTS = [
    (projection, "CLAMP_MARGIN", 0.15, "g_means"),
    (compositing, "ALPHA_MAX", 0.98, "image"),
    (compositing, "TRANSMITTANCE_MIN", 1e-3, "image"),
    (compositing, "ALPHA_MIN", 1 / 250, "image"),
    (projection, "COMPENSATION_MIN", 0.05, "aa_image"),
]


@pytest.mark.parametrize(("module", "constant", "value", "array"), WRONG_CONSTANTS)
def test_a_wrong_constant_of_the_method_is_a_miss(monkeypatch, module, constant, value, array):
    arrays = synthetic.scene(5, n=120, degree=0, scale=0.3, spread=1.6)
    arrays["opacities"] = np.maximum(arrays["opacities"], np.float32(0.5))
    arrays["opacities"][:60] = 1
    arrays["scales"][60:70] *= np.float32(0.001)  # dimmed to the least compensation
    case = synthetic.make_case(arrays)
    costs = gaussian3d.costs_of(case, gaussian3d.measure_scene, 3)
    monkeypatch.setattr(module, constant, value)
    measured = gaussian3d.measure_scene(case, gaussian3d.Implementation.reference())
    monkeypatch.undo()
    found = {c.name: c for c in gaussian3d.compare_all(case, measured, costs, exact=False)}
    assert not found[array].ok


def test_a_backend_that_lets_the_gradient_through_the_alpha_clamp_misses(shared_dir, monkeypatch):
    case = load_case(golden_file(shared_dir, "3dgs_edgezoo_50x38"))
    costs = gaussian3d.costs_of(case, gaussian3d.measure_scene, 3)

    def unclamped(picture, *arguments):
        monkeypatch.setattr(compositing, "ALPHA_MAX", np.inf)
        try:
            return compositing.composite_vjp(picture, *arguments)
        finally:
            monkeypatch.setattr(compositing, "ALPHA_MAX", 0.99)

    from gaian_hpc.renderers.reference import renderer
    monkeypatch.setattr(renderer, "composite_vjp", unclamped)
    measured = gaussian3d.measure_scene(case, gaussian3d.Implementation.reference())
    found = {c.name: c for c in gaussian3d.compare_all(case, measured, costs, exact=False)}
    assert found["image"].ok and not found["g_opacities"].ok


@pytest.mark.parametrize("damage", ["missing", "truncated", "text", "unknown arrays", "npy"])
def test_a_file_that_is_no_golden_file_is_one_line_and_exit_code_one(case_file, capsys, damage):
    if damage == "missing":
        case_file.unlink()
    elif damage == "truncated":
        case_file.write_bytes(case_file.read_bytes()[:5000])
    elif damage == "text":
        case_file.write_text("nothing")
    elif damage == "npy":
        with case_file.open("wb") as f:
            np.save(f, np.zeros(3))
    else:
        np.savez(case_file, means=np.zeros((2, 3)))
    assert main([str(case_file)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("ERROR ") and str(case_file) in error


@pytest.mark.parametrize("missing", ["K", "background", "eps2d", "radii_fragile", "scales"])
def test_a_file_without_an_input_is_one_line_and_exit_code_one(case, tmp_path, capsys, missing):
    arrays = {name: x for name, x in case.arrays.items() if name != missing}
    assert main([str(synthetic.save_case(replace(case, arrays=arrays), tmp_path / "x.npz"))]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("ERROR ")


def test_inputs_that_do_not_fit_together_are_named(case, tmp_path, capsys):
    wrong = replace(case, arrays=case.arrays | {"quats": case["quats"][:-1]})
    assert main([str(synthetic.save_case(wrong, tmp_path / "x.npz"))]) == 1
    assert "'quats' has shape (29, 4) where (30, 4) is expected" in capsys.readouterr().err


def test_a_method_that_a_backend_lacks_is_an_error_and_other_files_are_still_checked(case_file, tmp_path, capsys):
    surfels = tmp_path / "surfels.npz"
    np.savez(surfels, ray_transforms=np.zeros((2, 3, 3)), means=np.zeros((2, 3)))
    assert main([str(surfels), str(case_file), "--backend", "reference"]) == 1
    out, error = capsys.readouterr()
    assert "reference of gaussian2d is not available" in error
    assert "1 of 2 files ok" in out
