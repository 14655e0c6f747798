"""Ranges, files and command lines of settings, on a made-up method with a few options."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gaian_hpc import config
from gaian_hpc.errors import SettingsError
from gaian_hpc.settings import DataSettings, DensifySettings, OptimizerSettings, Settings, ranged


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a method that isn't there.

    Parameters
    ----------
    degree : int
        A degree.
    margin : float
        A margin.
    sizes : tuple of float
        Two sizes.
    label : str, optional
        A label.
    """

    degree: int = ranged(3, 0, 3)
    margin: float = 0.5
    sizes: tuple[float, float] = (1.0, 2.0)
    label: str | None = None


class Method:
    """A method that isn't there."""

    Options = Options


@pytest.fixture(autouse=True)
def made_up_method(monkeypatch):
    def find(name):
        if name not in ("gaussian3d", "made_up"):
            raise SettingsError(f"method {name!r} is unknown")
        return Method
    monkeypatch.setattr(config, "renderer_class", find)


def parse(*arguments, files=()):
    return config.parse_settings(config.LineParser(prog="gaian train"), arguments, files)[1:]


def write(folder: Path, text: str, name="given.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_defaults_are_the_dataclass_defaults():
    assert parse() == (Settings(), Options())


def test_command_line_wins_over_file_and_file_over_defaults(tmp_path):
    given = write(tmp_path, "steps = 7\nseed = 3\n[data]\nfactor = 2\n[renderer]\ndegree = 1\nmargin = 2\n")
    settings, options = parse("--steps", "9", "--renderer.margin=0.25", files=[given])
    assert (settings.steps, settings.seed, settings.data.factor) == (9, 3, 2)
    assert options == Options(degree=1, margin=0.25)


def test_a_later_file_wins_over_an_earlier_one(tmp_path):
    files = [write(tmp_path, "steps = 7\nseed = 3\n", "a.toml"), write(tmp_path, "steps = 8\n", "b.toml")]
    settings, _ = parse(files=files)
    assert (settings.steps, settings.seed) == (8, 3)


def test_toml_text_gives_back_the_same_settings():
    settings = Settings(steps=12, ssim_weight=1.0, data=DataSettings(init="cloud.ply", masks=False),
                        optimizer=OptimizerSettings(kind="dense", eps=1e-8))
    options = Options(degree=0, margin=0.1 + 0.2, sizes=(3.0, 4.0))
    assert config.settings_from_toml(config.settings_to_toml(settings, options)) == (settings, options)


def test_the_method_named_on_the_command_line_wins():
    assert config.chosen_method(["--method", "b"], [{"method": "a"}]) == "b"
    assert config.chosen_method(["--steps=3", "--method=b"], []) == "b"
    assert config.chosen_method(["--steps", "3"], [{"method": "a"}]) == "a"
    assert config.chosen_method([], []) == "gaussian3d"


def test_a_resumed_run_takes_the_settings_saved_in_it_before_those_of_a_file(tmp_path):
    saved = write(tmp_path, "", "settings.toml")
    line = ["S", "-o", str(tmp_path), "--config", "c.toml"]
    assert config.settings_files(line) == [Path("c.toml")]
    assert config.settings_files([*line, "--resume"]) == [saved, Path("c.toml")]
    assert config.settings_files(["S", "-o", str(tmp_path / "none"), "--resume"]) == []


@pytest.mark.parametrize(("arguments", "message"), [
    (["--steps", "abc"], "setting steps is 'abc'; it must be of type int"),
    (["--steps", "2.5"], "setting steps is '2.5'; it must be of type int"),
    (["--steps"], "argument --steps: expected one argument"),
    (["--stesp", "3"], "unknown argument --stesp; did you mean --steps?"),
    (["--step", "3"], "unknown argument --step; did you mean --steps?"),
    (["--optimizer.kin=dense"], "unknown argument --optimizer.kin; did you mean --optimizer.kind?"),
    (["--optimizer.kind", "dens"], "setting optimizer.kind is 'dens'; it must be one of selective, dense"),
    (["--renderer.degree", "4"], "setting renderer.degree is 4; it must be at least 0 and at most 3"),
    (["--renderer.dgree", "1"], "unknown argument --renderer.dgree; did you mean --renderer.degree?"),
    (["--densify.absgrad", "perhaps"], "setting densify.absgrad is 'perhaps'; it must be of type bool"),
    (["--optimizer.eps", ".nan"], "setting optimizer.eps is nan; it must be above 0"),
    (["--renderer.margin", ".inf"], "setting renderer.margin is inf; it must be finite"),
    (["--method", "other"], "method 'other' is unknown"),
    (["--data", "absent.yaml"], "setting data: Unable to load config 'absent.yaml' - setting data: Unable to load "
                                'config "absent.yaml"'),
])
def test_a_bad_argument_is_named_with_what_is_allowed(arguments, message):
    with pytest.raises(SettingsError) as caught:
        parse(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(("text", "message"), [
    ("[data]\nfacto = 2\n", "unknown setting data.facto; did you mean data.factor?"),
    ("stpes = 2\n", "unknown setting stpes; did you mean steps?"),
    ("data = 2\n", "setting data is 2; it must be a table, [data]"),
    ("[data]\nfactor = 'x'\n", "setting data.factor is 'x'; it must be of type int"),
    ("[data]\nfactor = 0\n", "setting data.factor is 0; it must be at least 1"),
    ("[renderer]\ndegree = 9\n", "setting renderer.degree is 9; it must be at least 0 and at most 3"),
    ("steps = \n", "not valid TOML"),
])
def test_a_bad_file_is_named_with_the_setting(tmp_path, text, message):
    given = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        parse(files=[given])
    assert str(caught.value).startswith(f"{given}: {message}")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SettingsError, match=r"absent\.toml: cannot read the settings file: No such file"):
        config.read_settings(tmp_path / "absent.toml")


def test_a_binary_file_is_named(tmp_path):
    path = tmp_path / "picture.toml"
    path.write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(SettingsError, match=r"picture\.toml: not a text file"):
        config.read_settings(path)


@pytest.mark.parametrize(("settings", "name"), [
    (Settings(steps=0), "steps"),
    (Settings(ssim_weight=1.01), "ssim_weight"),
    (Settings(ssim_weight=float("nan")), "ssim_weight"),
    (Settings(optimizer=OptimizerSettings(beta1=1.0)), "optimizer.beta1"),
    (Settings(optimizer=OptimizerSettings(eps=0.0)), "optimizer.eps"),
    (Settings(data=DataSettings(init="points.obj")), "data.init"),
    (Settings(densify=DensifySettings(start=500, stop=400)), "densify.stop"),
])
def test_a_value_out_of_range_is_refused_by_name(settings, name):
    with pytest.raises(SettingsError, match=rf"setting {name} is .*; it must be "):
        settings.validate()


def test_bounds_themselves_are_allowed():
    settings = Settings(steps=1, ssim_weight=1.0, optimizer=OptimizerSettings(beta1=0.0))
    assert settings.validate() is settings
    assert replace(settings, ssim_weight=0.0).validate()


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[2].glob("jobs/configs/*.toml")), ids=lambda p: p.stem)
def test_shipped_configuration_is_valid(path, monkeypatch):
    monkeypatch.undo()  # the real method, not the made-up one
    settings, _ = config.read_settings(path)
    assert settings != Settings()
