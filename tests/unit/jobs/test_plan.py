"""`gaian plan`: all partitioners side by side from a profile or a scene, and one clear line where that cannot be."""

import dataclasses
import json

import numpy as np
import pytest

from gaian_hpc import cli
from gaian_hpc.data.profiles import read_profile
from gaian_hpc.errors import DataError
from gaian_hpc.placement.profile import Profile
from tests.unit.placement.surveys import survey

KEYS = {"bytes_total", "bytes_inter_host", "bytes_max_receiver", "balance_points", "balance_work"}
SIDE = 4


def arrays_of(profile: Profile) -> dict[str, np.ndarray]:
    whole = profile.whole_views()
    return {"size": profile.cell_sizes, "centre": profile.cell_centers, "indptr": whole.indptr, "indices": whole.cells,
            "counts": whole.counts, "patch_indptr": profile.indptr, "patch_indices": profile.cells,
            "patch_counts": profile.counts}


@pytest.fixture(scope="module")
def profile():
    return survey(side=20, n_views=60, patches=SIDE, reach=5.0)


@pytest.fixture(scope="module")
def archive(profile, tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "survey.npz"
    np.savez(path, **arrays_of(profile))
    return path


def planned(capsys, *words):
    assert cli.main(["plan", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def complaint(capsys, *words):
    assert cli.main(["plan", *map(str, words)]) != 0
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    return err


def test_every_partitioner_is_planned_beside_random_placement_with_whole_images(archive, capsys):
    plan = planned(capsys, archive, "--ranks", 8, "--hosts", 4, "--views-per-rank", 2)
    assert {v["placement"] for v in plan.values()} == {"random", "morton", "metis"}
    assert {(v["placement"], v["assignment"]) for v in plan.values()} >= {("random", "contiguous")}
    for variant in plan.values():
        assert KEYS <= variant.keys()
        assert 0 <= variant["bytes_inter_host"] <= variant["bytes_total"]
        assert variant["bytes_max_receiver"] <= variant["bytes_total"]
        assert variant["balance_points"] >= 1 and variant["balance_work"] >= 1
    base, metis = plan["random-whole-images"], plan["metis"]
    assert metis["bytes_total"] < 0.6 * base["bytes_total"]
    assert metis["bytes_inter_host"] < 0.5 * base["bytes_inter_host"]
    assert metis["balance_work"] <= 1.15 + 1e-9


def test_the_baseline_moves_all_but_a_ranks_own_share(archive, profile, capsys):
    base = planned(capsys, archive, "--ranks", 8, "--hosts", 4, "--views-per-rank", 2)["random-whole-images"]
    a_step = profile.counts.sum() / 60 * 16 * (4 + 12 * 4 + 10 * 4)  # id, splat and gradients of each of 16 views
    assert base["bytes_total"] == pytest.approx(a_step * 7 / 8, rel=0.03)
    assert base["bytes_inter_host"] == pytest.approx(a_step * 6 / 8, rel=0.03)


def test_shorter_floats_halve_what_they_can_and_leave_ids_whole(archive, capsys):
    words = [archive, "--ranks", 4, "--hosts", 2]
    plans = {codec: planned(capsys, *words, "--codec", codec)["metis"]["bytes_total"]
             for codec in ("fp32", "fp16", "bf16", "int8")}
    assert plans["fp16"] / plans["fp32"] == pytest.approx(48 / 92, rel=1e-3)
    assert plans["bf16"] / plans["fp32"] == pytest.approx(48 / 92, rel=1e-3)
    assert plans["int8"] < plans["fp16"]


def test_one_rank_moves_nothing_and_one_host_nothing_between_hosts(archive, capsys):
    assert all(v["bytes_total"] == 0 for v in planned(capsys, archive, "--ranks", 1, "--hosts", 1).values())
    plan = planned(capsys, archive, "--ranks", 4, "--hosts", 1)
    assert all(v["bytes_inter_host"] == 0 < v["bytes_total"] for v in plan.values())


def test_the_curve_shows_points_ever_more_even(archive, capsys):
    plan = planned(capsys, archive, "--ranks", 4, "--hosts", 2, "--curve", "--placement.work_share", "1.0")
    curve = [v for name, v in plan.items() if name.startswith("metis, points")]
    assert [v["points_slack"] for v in curve] == [1.6, 1.4, 1.2, 1.1, 1.05]
    assert all(v["balance_points"] <= v["points_slack"] + 1e-9 for v in curve)


def test_the_same_seed_gives_the_same_plan_and_another_one_another(archive, capsys):
    words = [archive, "--ranks", 4, "--hosts", 2, "--seed"]
    first, again, other = (planned(capsys, *words, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_hosts_may_hold_unequal_numbers_of_ranks(archive, capsys):
    assert planned(capsys, archive, "--ranks", 5, "--hosts", 2)["metis"]["bytes_inter_host"] > 0


def test_patches_of_a_profile_can_be_joined_down_to_whole_views(archive, capsys):
    words = [archive, "--ranks", 8, "--hosts", 4, "--patches"]
    shares = [planned(capsys, *words, side)["metis"]["remote_share"] for side in (4, 2, 1)]
    assert shares == sorted(shares) and shares[0] < shares[2]


def test_a_profile_without_patches_is_planned_by_whole_views(profile, tmp_path, capsys):
    arrays = {k: v for k, v in arrays_of(profile).items() if not k.startswith("patch")}
    np.savez(tmp_path / "whole.npz", **arrays)
    assert planned(capsys, tmp_path / "whole.npz", "--ranks", 4)["metis"]["bytes_total"] > 0
    assert "--patches 4" in complaint(capsys, tmp_path / "whole.npz", "--ranks", "4", "--patches", "4")


def test_a_scene_is_planned_from_its_start_points(city, capsys):
    plan = planned(capsys, city, "--ranks", 2, "--hosts", 2, "--patches", 2)
    assert plan["metis"]["bytes_total"] < plan["random"]["bytes_total"]
    assert cli.main(["plan", str(city), "--ranks", "2"]) == 0
    assert ", 8 views of 12 patches;" in capsys.readouterr().out  # 64 x 48 pixels have 4 x 3 tiles


@pytest.mark.parametrize(("words", "message"), [
    (["--ranks", "0"], "argument --ranks is 0; it must be at least 1"),
    (["--ranks", "2", "--hosts", "3"], "argument --hosts is 3 with --ranks 2"),
    (["--ranks", "2", "--hosts", "0"], "argument --hosts is 0; it must be at least 1"),
    (["--ranks", "2", "--views-per-rank", "0"], "argument --views-per-rank is 0"),
    (["--ranks", "2", "--patches", "3"], "4 x 4 patches a view, which --patches 3 does not divide"),
    (["--ranks", "2", "--codec", "fp8"], "fp8"),
    ([], "ranks"),
])
def test_a_plan_that_cannot_be_is_refused_in_one_line(archive, capsys, words, message):
    assert message in complaint(capsys, archive, *words)


def test_a_missing_source_is_named(tmp_path, capsys):
    assert str(tmp_path / "absent.npz") in complaint(capsys, tmp_path / "absent.npz", "--ranks", "2")


def damaged(arrays, key, change):
    return {**arrays, key: change(arrays[key])}


@pytest.mark.parametrize(("key", "change"), [
    ("indices", lambda a: a + 10_000), ("indices", lambda a: a - 1000), ("counts", lambda a: -a),
    ("indptr", lambda a: a[::-1]), ("indptr", lambda a: a[:-1]), ("indptr", lambda a: a[:1]),
    ("centre", lambda a: a[:3]),
    ("counts", lambda a: a[:-1]), ("counts", lambda a: a.astype(object)), ("counts", lambda a: a.reshape(1, -1)),
    ("patch_indptr", lambda a: a[:-2]), ("patch_indices", lambda a: a.astype(float) * np.nan),
    ("size", lambda a: a.astype(str)), ("size", lambda a: -a), ("size", lambda a: a * 0),
])
def test_arrays_that_do_not_fit_together_are_refused_in_one_line(profile, tmp_path, key, change):
    path = tmp_path / "damaged.npz"
    np.savez(path, **damaged(arrays_of(profile), key, change))
    with pytest.raises(DataError, match=r"damaged\.npz") as error:
        read_profile(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["size", "centre", "indptr", "indices", "counts"])
def test_a_missing_array_is_named(profile, tmp_path, key):
    np.savez(tmp_path / "p.npz", **{k: v for k, v in arrays_of(profile).items() if k != key})
    with pytest.raises(DataError, match=f"'{key}'"):
        read_profile(tmp_path / "p.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and no more", b"text", b"\x93NUMPY\x01\x00"])
def test_files_that_are_no_archive_are_refused(tmp_path, content):
    (tmp_path / "p.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"p\.npz"):
        read_profile(tmp_path / "p.npz")


def test_a_lone_npy_array_is_refused(tmp_path):
    with (tmp_path / "p.npz").open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(DataError, match=r"p\.npz"):
        read_profile(tmp_path / "p.npz")


def test_a_truncated_archive_is_refused(archive, tmp_path):
    data = archive.read_bytes()
    for keep in (0.3, 0.9):
        (tmp_path / "p.npz").write_bytes(data[:int(keep * len(data))])
        with pytest.raises(DataError, match=r"p\.npz"):
            read_profile(tmp_path / "p.npz")


def test_a_profile_is_read_as_it_was_written(profile, archive):
    whole, fine = read_profile(archive)
    for name in (f.name for f in dataclasses.fields(Profile)):
        assert np.array_equal(getattr(fine, name), getattr(profile, name)), name
    assert np.array_equal(whole.counts, profile.whole_views().counts)
