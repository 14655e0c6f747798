"""The golden files against the cuda kernels, run on the CPU."""

import pytest

from tests.golden.report import check

FILES = ("3dgs_small8_32x32", "3dgs_edgezoo_50x38", "3dgs_overlap150_deg1_61x45", "3dgs_garden2000_128x96",
         "3dgs_projection300_80x60", "sh_deg0to3", "4dgs_small10_32x32", "4dgs_edgezoo_50x38", "4dgs_norot_80_48x48",
         "4dgs_sht2_100_60x44", "4dgs_overlap150_60x44", "2dgs_small8_32x32", "2dgs_edgezoo_50x38",
         "2dgs_overlap200_64x48", "2dgs_garden1500_96x72", "convex_small6_32x32", "convex_edgezoo_49x35",
         "convex_sharp60_60x44", "convex_soft50_64x48", "ssim_random_40x33", "ssim_smooth_64x48", "adam_40x3")


@pytest.mark.parametrize("name", FILES)
def test_the_cuda_kernels_agree_with_a_golden_file(shared_dir, name):
    report = check(shared_dir / "golden" / f"{name}.npz", "emulated")
    assert report.ok, "\n".join(report.lines())
