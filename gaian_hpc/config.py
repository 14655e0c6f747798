"""From defaults, TOML files and command-line arguments to :class:`~gaian_hpc.settings.Settings`, and back to TOML.

The method's own options are the table ``[renderer]`` of a file and ``--renderer.NAME`` on a command line.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace

from .errors import SettingsError
from .renderers.base import renderer_class
from .settings import Settings, check_ranges

OPTIONS_KEY = "renderer"
SAVED_NAME = "settings.toml"


class LineParser(ArgumentParser):
    """A parser whose every complaint is one :class:`SettingsError`; options can't be abbreviated."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise ``message`` as one line, with the nearest known option where one is unknown."""
        raise SettingsError(_one_line(message, [s for a in self._actions for s in a.option_strings])) from None


def add_settings(parser: LineParser, method: str) -> None:
    """Add an option for every setting, and for every option of ``method``.

    Raises
    ------
    SettingsError
        If no installed package provides ``method``.
    """
    parser.add_class_arguments(Settings, None)
    parser.add_class_arguments(renderer_class(method).Options, OPTIONS_KEY)


def parse_settings(parser: LineParser, arguments: Sequence[str],
                   files: Sequence[Path]) -> tuple[Namespace, Settings, Any]:
    """Parse a command line over the files given, later files over earlier ones.

    Parameters
    ----------
    parser : LineParser
        With the command's own arguments but not yet those of the settings.
    arguments : sequence of str
        The command line.
    files : sequence of path
        TOML files of settings.

    Returns
    -------
    arguments : Namespace
    settings : Settings
    options : the method's ``Options``

    Raises
    ------
    SettingsError
        On an unknown name, a wrong type or a value out of range, naming the file it stands in.
    """
    tables = [(path, read_toml(path)) for path in files]
    method = chosen_method(arguments, [table for _, table in tables])
    add_settings(parser, method)
    for path, table in tables:
        typed_settings(table, method, str(path))
        parser.set_defaults(dict(flatten(table)))
    arguments = parser.parse_args(list(arguments))
    tree = parser.instantiate(arguments)
    return arguments, *_checked(tree)


def settings_files(arguments: Sequence[str]) -> list[Path]:
    """Return the files a command line takes settings from: those saved in a run it resumes, then its ``--config``."""
    chooser = _chooser()
    chooser.add_argument("--config", nargs="?")
    chooser.add_argument("-o", "--output", nargs="?")
    chooser.add_argument("--resume", action="store_true")
    named = chooser.parse_known_args(list(arguments))[0]
    files = []
    if named.resume and named.output and (saved := Path(named.output) / SAVED_NAME).exists():
        files.append(saved)
    if named.config:
        files.append(Path(named.config))
    return files


def chosen_method(arguments: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> str:
    """Return the method that a command line, else the last file naming one, else the default chooses."""
    chooser = _chooser()
    chooser.add_argument("--method", nargs="?")
    if named := chooser.parse_known_args(list(arguments))[0].method:
        return named
    return next((str(t["method"]) for t in reversed(tables) if "method" in t), Settings.method)


def settings_to_toml(settings: Settings, options: Any) -> str:
    """Return TOML text of all settings and of the method's options (a dataclass)."""
    import tomli_w

    tree = dataclasses.asdict(settings)
    tables = {name: value for name, value in tree.items() if isinstance(value, dict)}
    scalars = {name: value for name, value in tree.items() if not isinstance(value, dict)}
    return tomli_w.dumps(_without_none({**scalars, **tables, OPTIONS_KEY: dataclasses.asdict(options)}))


def settings_from_toml(text: str, source: str = "settings") -> tuple[Settings, Any]:
    """Return the settings and the method's options of a TOML text; what it leaves out has its default.

    Parameters
    ----------
    text : str
    source : str
        Where the text came from, for messages.

    Raises
    ------
    SettingsError
        On text that isn't TOML, an unknown name, a wrong type, a value out of range or a method not installed.
    """
    table = parse_toml(text, source)
    return typed_settings(table, chosen_method((), [table]), source)


def read_settings(path: str | Path) -> tuple[Settings, Any]:
    """Return the settings and the method's options of a TOML file (see :func:`settings_from_toml`)."""
    path = Path(path)
    table = read_toml(path)
    return typed_settings(table, chosen_method((), [table]), str(path))


def typed_settings(table: Mapping[str, Any], method: str, source: str) -> tuple[Settings, Any]:
    """Return the settings and options of a nested table, checked by name, type and range."""
    parser = LineParser()
    add_settings(parser, method)
    known = list(vars(parser.get_defaults().as_flat()))
    for key, value in flatten(table):
        if any(name.startswith(f"{key}.") for name in known):
            raise SettingsError(f"{source}: setting {key} is {value!r}; it must be a table, [{key}]")
        if key not in known:
            owner = table.get("method", method)
            if owner != method and key.startswith(f"{OPTIONS_KEY}."):
                raise SettingsError(f"{source}: setting {key} belongs to method {owner!r}, not to {method!r}; leave "
                                    f"out --method {method}, or use settings of its own")
            raise SettingsError(f"{source}: unknown setting {key}{_near(key, known)}")
    try:
        return _checked(parser.instantiate(parser.parse_object(dict(table))))
    except SettingsError as error:
        raise SettingsError(f"{source}: {error}") from None


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises
    ------
    SettingsError
        If it can't be read or isn't TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the settings file: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not a text file; settings are TOML in UTF-8") from None
    return parse_toml(text, str(path))


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """Return the tables of a TOML text (see :func:`read_toml`)."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source}: not valid TOML: {error}") from None


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``("data.factor", value)`` for every leaf of a nested table."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _chooser() -> argparse.ArgumentParser:
    """Return a parser for a first look at a few arguments; the full parser, built from what it finds, complains."""
    return argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)


def _checked(tree: Namespace) -> tuple[Settings, Any]:
    settings = Settings(**{f.name: tree[f.name] for f in dataclasses.fields(Settings)}).validate()
    options = tree[OPTIONS_KEY]
    check_ranges(options, f"{OPTIONS_KEY}.")
    return settings, options


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return list(value) if isinstance(value, tuple) else value


def _near(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _one_line(message: str, known: Sequence[str]) -> str:
    """Reword the parsing library's complaints, which run over several lines and speak of Python types."""
    text = " ".join(message.split())
    if found := re.fullmatch(r'Parser key "(.+?)": .*(?:Got|Given) value: (.*)', text):
        wanted = re.findall(r"Expected an? (.+?)(?=\. Got value| - Expected| Given value type)", text)
        allowed = [_kind(w) for w in wanted if "NoneType" not in w]
        return f"setting {found[1]} is {found[2]!r}; it must be {' or '.join(allowed) or 'of another type'}"
    if found := re.fullmatch(r"unrecognized arguments: (.*)", text):
        unknown = next((w for w in found[1].split() if w.startswith("-")), found[1]).partition("=")[0]
        return f"unknown argument {unknown}{_near(unknown, known)}"
    return re.sub(r'Parser key "(.+?)":', r"setting \1:", text)


def _kind(wanted: str) -> str:
    wanted = re.sub(r"^(?:typing\.)?Literal\[(.*)\]$", r"one of \1", wanted)
    return re.sub(r"^<class '(\w+)'>$", r"of type \1", wanted).replace("'", "")
