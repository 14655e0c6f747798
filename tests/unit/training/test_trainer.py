"""A run: resumed it ends in the same bits, and what it cannot go on from it refuses."""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from gaian_hpc.checkpoint.folders import list_checkpoints
from gaian_hpc.checkpoint.ply import export_points
from gaian_hpc.checkpoint.reader import read_checkpoint
from gaian_hpc.checkpoint.summary import digest, digest_of_store
from gaian_hpc.config import settings_from_toml
from gaian_hpc.data.cache import PictureCache
from gaian_hpc.data.scene import load_scene
from gaian_hpc.errors import DataError, FormatError, GaianError, SettingsError
from gaian_hpc.training.journal import METRICS_NAME
from gaian_hpc.training.start import PIXELS_PER_POINT, scene_fingerprint
from tests.unit.runs import STEPS, VARIANTS, edits_of, make_settings, make_trainer, metrics_of, train

RESUMED = ("default", "mcmc", "dense adam", "two views in many patches")


@pytest.fixture(scope="module")
def straight(city, tmp_path_factory):
    """Return a function that trains a variant once without a stop and returns its run folder."""
    runs = {}

    def run(name):
        if name not in runs:
            changes, options, edits = VARIANTS[name]
            folder = tmp_path_factory.mktemp("straight") / "run"
            trainer = train(city, folder, changes, options)
            assert edits <= edits_of(folder)
            assert digest(folder) == digest_of_store(trainer.store)
            runs[name] = folder
        return runs[name]
    return run


def assert_same_end(run, other):
    assert digest(run) == digest(other)
    assert (run / METRICS_NAME).read_bytes() == (other / METRICS_NAME).read_bytes()
    first, second = read_checkpoint(run), read_checkpoint(other)
    assert first.step == second.step
    assert first.metrics == second.metrics
    assert first.store.next_id == second.store.next_id
    for name, x in first.store.statistics.items():
        assert x.tobytes() == second.store.statistics[name].tobytes(), name


@pytest.mark.parametrize("name", RESUMED)
@pytest.mark.parametrize("k", [1, 10, 11, 12, 13])  # an edit opens step 11, a reset step 13
def test_a_run_stopped_and_resumed_ends_like_one_that_never_stopped(city, straight, tmp_path, name, k):
    changes, options, _ = VARIANTS[name]
    run = tmp_path / "run"
    train(city, run, {**changes, "steps": k}, options)
    resumed = train(city, run, changes, options, resume=True)
    assert resumed.resumed.step == k
    assert_same_end(run, straight(name))


def test_a_run_resumed_at_every_other_step_ends_like_one_that_never_stopped(city, straight, tmp_path):
    for step in range(2, STEPS + 1, 2):
        train(city, tmp_path / "run", {"steps": step}, resume=True)
    assert_same_end(tmp_path / "run", straight("default"))


def test_lines_are_the_same_after_a_stop_between_two_lines(city, tmp_path):
    train(city, tmp_path / "a", {"log_every": 10})
    train(city, tmp_path / "b", {"log_every": 10, "steps": 13})
    train(city, tmp_path / "b", {"log_every": 10}, resume=True)
    assert_same_end(tmp_path / "a", tmp_path / "b")
    assert [line["step"] for line in metrics_of(tmp_path / "a") if "loss" in line] == [1, 10, 20]


def test_cadences_threads_and_caches_do_not_enter_the_result(city, straight, tmp_path):
    run = tmp_path / "run"
    train(city, run, {"steps": 10, "checkpoint.every": 3, "data.prefetch": 0})
    train(city, run, {"checkpoint.every": 7, "checkpoint.compress": True, "data.cache_mb": 1}, resume=True)
    assert_same_end(run, straight("default"))


def test_only_the_newest_checkpoints_are_kept(city, tmp_path):
    train(city, tmp_path / "run", {"checkpoint.every": 5, "checkpoint.keep": 2})
    assert [p.name for p in list_checkpoints(tmp_path / "run")] == ["step_0000020", "step_0000024"]


@pytest.mark.parametrize("damage", ["flipped", "truncated", "missing"])
def test_a_damaged_newest_checkpoint_is_passed_over_and_the_end_is_the_same(city, straight, tmp_path, damage, caplog):
    run = tmp_path / "run"
    train(city, run, {"checkpoint.every": 8, "checkpoint.keep": 0})
    shard = run / "checkpoints" / "step_0000024" / "shard_00000.h5"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        shard.unlink()
    else:
        shard.write_bytes(content if damage == "flipped" else content[:-100])
    resumed = train(city, run, {"checkpoint.every": 8, "checkpoint.keep": 0}, resume=True)
    assert resumed.resumed.step == 16
    assert "step_0000024 is not used" in caplog.text
    assert_same_end(run, straight("default"))


def test_a_run_none_of_whose_checkpoints_is_intact_is_refused(city, tmp_path):
    run = tmp_path / "run"
    train(city, run, {"steps": 2})
    (run / "checkpoints" / "step_0000002" / "shard_00000.h5").unlink()
    with pytest.raises(FormatError, match="none of its 1 checkpoints is intact"):
        make_trainer(city, run, resume=True)


STOPPED = """
import sys
from pathlib import Path
from tests.unit.runs import train
trainer = train(Path(sys.argv[1]), Path(sys.argv[2]), {"steps": 10**6, "checkpoint.every": 10**6})
print(trainer.step)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_run_stopped_by_a_signal_leaves_a_checkpoint_and_resumes_to_the_same_bits(city, tmp_path, repository, number):
    run = tmp_path / "run"
    process = subprocess.Popen([sys.executable, "-c", STOPPED, city, run], cwd=repository, text=True,
                               stdout=subprocess.PIPE)
    deadline = time.monotonic() + 200
    while not (run / METRICS_NAME).exists() or len((run / METRICS_NAME).read_bytes().splitlines()) < 8:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    stopped = int(process.communicate(timeout=60)[0])
    assert process.returncode == 0
    assert [p.name for p in list_checkpoints(run)] == [f"step_{stopped:07d}"]
    train(city, run, {"steps": stopped + 3, "checkpoint.every": 10**6}, resume=True)
    train(city, tmp_path / "straight", {"steps": stopped + 3})
    assert_same_end(run, tmp_path / "straight")


def test_a_second_interrupt_stops_at_once():
    from gaian_hpc.training.trainer import stop_on_signals

    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_folder_with_checkpoints_is_not_trained_into_without_resume(city, straight):
    run = straight("default")
    with pytest.raises(SettingsError, match="already holds checkpoints of a run; add --resume"):
        make_trainer(city, run)


def test_resume_without_a_checkpoint_starts_anew(city, straight, tmp_path):
    trainer = train(city, tmp_path / "run", resume=True)
    assert trainer.resumed is None
    assert_same_end(tmp_path / "run", straight("default"))


def test_a_finished_run_resumed_stays_as_it_is(city, straight, tmp_path):
    run = shutil.copytree(straight("default"), tmp_path / "run")
    before = (run / METRICS_NAME).read_bytes()
    assert train(city, run, {"steps": 10}, resume=True).step == STEPS
    assert (run / METRICS_NAME).read_bytes() == before
    assert len(list_checkpoints(run)) == 1


@pytest.mark.parametrize("changes, options, named", [
    ({"seed": 1}, {}, "seed was 0 and is now 1"),
    ({"horizon": 41}, {}, "horizon was 40 and is now 41"),
    ({"densify.cap": 141}, {}, "densify.cap was 140 and is now 141"),
    ({"patch_size": 16}, {}, "patch_size was 192 and is now 16"),
    ({}, {"antialiased": True}, "renderer.antialiased was False and is now True"),
])
def test_resuming_with_other_settings_is_refused_naming_the_setting(city, straight, changes, options, named):
    with pytest.raises(SettingsError, match=f"step_0000024: setting {named}; a run goes on with its own settings"):
        make_trainer(city, straight("default"), changes, options, resume=True)


def test_resuming_with_another_scene_is_refused(city, straight, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(city, other)
    cameras = other / "sparse" / "0" / "cameras.txt"
    cameras.write_text(cameras.read_text().replace(" 57.59", " 57.69", 1))
    with pytest.raises(SettingsError, match=r"was trained on .*scene, whose views differ from those of .*other"):
        make_trainer(other, straight("default"), resume=True)


def test_a_scheduled_run_goes_on_with_its_schedule_and_refuses_that_of_other_tracks(city, tmp_path):
    changes = {"batches": "scheduled", "views_per_step": 2, "horizon": 24}
    train(city, tmp_path / "straight", changes | {"steps": 12})
    train(city, tmp_path / "run", changes | {"steps": 5})
    shutil.copytree(tmp_path / "run", tmp_path / "stopped")
    train(city, tmp_path / "run", changes | {"steps": 12}, resume=True)
    assert_same_end(tmp_path / "run", tmp_path / "straight")
    other = tmp_path / "other"
    shutil.copytree(city, other)
    points = other / "sparse" / "0" / "points3D.txt"
    points.write_text("\n".join(points.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(DataError, match="stopped: its schedule is one of another scene; go on with the scene"):
        make_trainer(other, tmp_path / "stopped", changes | {"steps": 12}, resume=True)


def test_resuming_with_another_split_is_refused(city, straight):
    with pytest.raises(SettingsError, match="views differ"):
        make_trainer(city, straight("default"), {"data.test_every": 4}, resume=True)


def test_resuming_a_copy_of_the_scene_elsewhere_is_allowed(city, straight, tmp_path):
    shutil.copytree(city, tmp_path / "moved")
    assert make_trainer(tmp_path / "moved", straight("default"), resume=True).step == STEPS


def test_resuming_with_another_method_is_refused(city, straight, monkeypatch):
    trainer = make_trainer(city, straight("default"), resume=True)
    trainer.settings = dataclasses.replace(trainer.settings, method="gaussian2d")
    with pytest.raises(SettingsError, match="a checkpoint of method 'gaussian3d', not 'gaussian2d'; resume"):
        trainer._find(True)


def test_resuming_with_more_bands_is_refused(city, straight):
    with pytest.raises(GaianError, match="step_0000024"):
        make_trainer(city, straight("default"), options={"sh_degree": 1}, resume=True)


def test_horizon_zero_ties_a_run_to_its_steps(city, tmp_path):
    run = tmp_path / "run"
    train(city, run, {"steps": 6, "horizon": 0})
    assert train(city, run, {"steps": 6, "horizon": 0}, resume=True).step == 6
    with pytest.raises(SettingsError, match="steps was 6 and is now 12, but horizon 0 ties the schedules to it"):
        make_trainer(city, run, {"steps": 12, "horizon": 0}, resume=True)


def test_horizon_zero_is_a_horizon_of_the_number_of_steps(city, tmp_path):
    digests = [digest_of_store(train(city, tmp_path / str(h), {"horizon": h, "densify.stop": 0}).store)
               for h in (0, STEPS, 2 * STEPS)]
    assert digests[0] == digests[1] != digests[2]


def test_the_seed_enters_the_result(city, straight, tmp_path):
    assert digest_of_store(train(city, tmp_path / "run", {"seed": 1}).store) != digest(straight("default"))


def test_resolved_settings_lie_beside_the_results(city, straight):
    settings, options = settings_from_toml((straight("default") / "settings.toml").read_text())
    assert settings == make_settings({})
    assert options.sh_every == 8


def test_training_learns_the_scene(city, tmp_path):
    train(city, tmp_path / "run", {"steps": 60, "densify.strategy": "none"})
    losses = [line["loss"] for line in metrics_of(tmp_path / "run")]
    assert np.mean(losses[-8:]) < 0.85 * np.mean(losses[:8])


def test_the_cap_holds_at_every_step(city, straight):
    counts = [line["n_points"] for line in metrics_of(straight("default"))]
    assert max(counts) == 140


def test_without_a_cap_the_training_pixels_or_the_start_points_bound_the_points(city, tmp_path):
    changes = {"densify.cap": 0, "densify.grad_threshold": 1e-5, "steps": 12}
    few = train(city, tmp_path / "few", changes)
    assert few.cap == few.store.n == 8 * 64 * 48 // PIXELS_PER_POINT  # of eight training pictures
    many = {**changes, "data.init": "random", "data.n_random": 500}
    train(city, tmp_path / "many", many)
    resumed = train(city, tmp_path / "many", {**many, "steps": 14}, resume=True)
    assert resumed.cap == 500 and 400 < resumed.store.n <= 500


def test_test_pictures_are_never_decoded_in_training(city, tmp_path, monkeypatch):
    seen = set()
    get = PictureCache.get

    def spy(self, index):
        seen.add(index)
        return get(self, index)
    monkeypatch.setattr(PictureCache, "get", spy)
    trainer = train(city, tmp_path / "run", {"densify.strategy": "none"})
    assert seen == set(trainer.scene.train_idx.tolist()) == {1, 2, 3, 4, 5, 6, 7, 9}
    assert trainer.scene.test_idx.tolist() == [0, 8]


def test_pictures_beyond_the_cache_train_to_the_same_bits(city, tmp_path, monkeypatch):
    scene = tmp_path / "large"
    shutil.copytree(city, scene)
    for path in sorted((scene / "images").iterdir()):  # 0.55 MB each decoded, 4.4 MB for the eight of the training
        Image.open(path).resize((496, 372)).save(path)
    changes = {"steps": 10, "densify.strategy": "none"}
    peaks = []
    keep = PictureCache._keep

    def spy(self, index, picture):
        keep(self, index, picture)
        peaks.append(self.nbytes)
    monkeypatch.setattr(PictureCache, "_keep", spy)
    small = train(scene, tmp_path / "small", {**changes, "data.cache_mb": 1})
    assert 0 < max(peaks) <= 1 << 20
    n_decoded = len(peaks)
    ample = train(scene, tmp_path / "ample", {**changes, "data.cache_mb": 64})
    assert n_decoded > len(peaks) - n_decoded == 8
    assert digest_of_store(small.store) == digest_of_store(ample.store)


def test_a_truncated_picture_ends_training_with_its_name_and_leaves_no_checkpoint(city, tmp_path):
    scene = tmp_path / "scene"
    shutil.copytree(city, scene)
    picture = scene / "images" / "view_003.png"
    picture.write_bytes(picture.read_bytes()[:-400])
    with pytest.raises(DataError, match=r"view_003\.png cannot be decoded"):
        train(scene, tmp_path / "run")
    assert list_checkpoints(tmp_path / "run") == []


def test_checkpoints_before_a_failure_stay_and_the_mended_run_ends_the_same(city, straight, tmp_path):
    scene, run = tmp_path / "scene", tmp_path / "run"
    shutil.copytree(city, scene)
    trainer = make_trainer(scene, run, {"checkpoint.every": 1})
    last = scene / "images" / trainer.scene.views[trainer.sampler.unit(7)[0]].name  # an epoch has eight steps
    whole = last.read_bytes()
    last.write_bytes(whole[:-400])
    with pytest.raises(DataError, match=f"{last.name} cannot be decoded"):
        trainer.run()
    assert list_checkpoints(run)[-1].name == "step_0000007"
    last.write_bytes(whole)
    train(scene, run, resume=True)
    assert digest(run) == digest(straight("default"))


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_a_loss_that_is_not_finite_stops_training_naming_step_and_view(city, tmp_path, value):
    start = make_trainer(city, tmp_path / "unused").store.raw
    start["sh"][:, 0] = value * np.where(np.arange(len(start["sh"]))[:, None] % 2, 1, -1)
    export_points(tmp_path / "huge.ply", start)
    with pytest.raises(GaianError, match=r"^step 1: the loss of view_00\d\.png is (nan|inf); check the start points"):
        train(city, tmp_path / "run", {"data.init": str(tmp_path / "huge.ply")})
    assert list_checkpoints(tmp_path / "run") == []


def test_the_fingerprint_tells_poses_sizes_names_and_splits_apart(city):
    scene = load_scene(city)
    view = scene.views[2]
    moved = view.viewmat.copy()
    moved[0, 3] += 1e-4
    changed = [dataclasses.replace(view, viewmat=moved), dataclasses.replace(view, name="other.png"),
               dataclasses.replace(view, width=65), dataclasses.replace(view, K=view.K * np.float32(1.001))]
    scenes = [scene, load_scene(city, test_every=4), load_scene(city, factor=2)]
    scenes += [dataclasses.replace(scene, views=(*scene.views[:2], v, *scene.views[3:])) for v in changed]
    assert len({scene_fingerprint(s) for s in scenes}) == len(scenes)
    assert scene_fingerprint(load_scene(city)) == scene_fingerprint(scene)
