"""The command ``gaian <verb>``: parses arguments and makes one call into a job.

Nothing heavy is imported before the verb is known, and each verb imports only its own job.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .errors import GaianError, SettingsError

if TYPE_CHECKING:
    from .config import LineParser
    from .settings import Settings

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: its usage after ``gaian``, one line of help, what runs it, and whether it runs on many ranks."""

    usage: str
    help: str
    run: Callable[[LineParser, Sequence[str]], int | None]
    many_ranks: bool = False


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0, 1 for bad input, 2 for usage, 130 when interrupted.

    Parameters
    ----------
    arguments : sequence of str, optional
        ``sys.argv[1:]`` by default.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = words[:1] == ["--debug"]
    words = words[1:] if debug else words
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return 0 if words else SettingsError.exit_code
    if words[0] == "--version":
        print(f"gaian {__version__}")
        return 0
    program = f"gaian {words[0]}" if words[0] in VERBS else "gaian"
    try:
        return _run(program, words)
    except GaianError as error:
        if debug:
            raise
        return _complain(program, str(error), error.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone (`gaian inspect … | head`): keep the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if debug or error.filename is None:
            raise
        return _complain(program, f"{error.filename}: {error.strerror}", 1)
    except KeyboardInterrupt:
        print(f"{program}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _run(program: str, words: Sequence[str]) -> int:
    name = words[0]
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SettingsError(f"unknown verb {name!r}; {hint}verbs: {', '.join(VERBS)}")
    from .config import LineParser
    from .distributed.world import require_one_rank

    verb = VERBS[name]
    if not verb.many_ranks:
        require_one_rank()
    parser = LineParser(prog=program, usage=f"gaian {verb.usage}", description=verb.help)
    return verb.run(parser, words[1:]) or 0


def _complain(program: str, message: str, code: int) -> int:
    print(f"{program}: error: {message}", file=sys.stderr)
    return code


def _overview() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.help}" for name, verb in VERBS.items())
    return (f"usage: gaian VERB …\n\nTrain point-based differentiable renderers.\n\nverbs:\n{verbs}\n\n"
            "`gaian VERB --help` lists all options of a verb. `gaian --debug VERB …` shows the traceback of an error.\n"
            "`gaian --version` prints the version.")


def _train(parser: LineParser, words: Sequence[str]) -> int | None:
    parser.add_argument("scene", type=Path, help="folder of a COLMAP, transforms.json or Blender scene")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="RUN", help="folder of the run's results")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint in RUN, if any, "
                                                              "with the settings saved there as defaults")
    from .distributed.world import open_world

    with open_world("gaian train") as world:
        with world.agreed():
            arguments, settings, options = _with_settings(parser, words)
        from .jobs.train import run_train

        return run_train(arguments.scene, arguments.output, settings, options, resume=arguments.resume, world=world)


def _evaluate(parser: LineParser, words: Sequence[str]) -> int | None:
    _add_run(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    _add_step(parser)
    _add_threads(parser)
    arguments = _parse(parser, words)
    from .jobs.evaluate import run_evaluate

    return run_evaluate(arguments.run, as_json=arguments.json, step=arguments.step)


def _render(parser: LineParser, words: Sequence[str]) -> int | None:
    _add_run(parser)
    parser.add_argument("-o", "--output", type=Path | None, metavar="DIR", help="folder of the PNG files; RUN/renders")
    parser.add_argument("--path", type=Path | None, metavar="CAMERAS.json",
                        help="cameras to render, in the form of a transforms.json, instead of the scene's own")
    parser.add_argument("--split", choices=("test", "train"), default="test", help="views to render without --path")
    parser.add_argument("--maps", action="store_true", help="also write depths (float TIFF) and normals (PNG)")
    _add_threads(parser)
    arguments = _parse(parser, words)
    from .jobs.render import run_render

    return run_render(arguments.run, output=arguments.output, path=arguments.path, split=arguments.split,
                      maps=arguments.maps)


def _export(parser: LineParser, words: Sequence[str]) -> int | None:
    _add_run(parser)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE.ply", help="file to write")
    parser.add_argument("--time", type=float, metavar="T", help="time from 0 to 1, for points that change in time")
    arguments = _parse(parser, words)
    from .jobs.export import export

    return export(arguments.run, arguments.output, arguments.time)


def _inspect(parser: LineParser, words: Sequence[str]) -> int | None:
    parser.add_argument("checkpoint", type=Path, help="folder or scene.h5 of a checkpoint, or a run for its newest")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--digest", action="store_true", help="print the SHA-256 of points and optimizer state only")
    arguments = _parse(parser, words)
    from .jobs.inspect_checkpoint import inspect

    return inspect(arguments.checkpoint, digest=arguments.digest, as_json=arguments.json)


def _bench(parser: LineParser, words: Sequence[str]) -> int | None:
    parser.add_argument("what", choices=("step", "scale", "sync"),
                        help="step: milliseconds of a training step and of its phases; scale: a step on several "
                             "ranks x threads, interleaved, and their ratios; sync: barrier against publication on "
                             "two hosts joined by a slow cable (as root)")
    parser.add_argument("scene", type=Path, help="folder of a scene")
    parser.add_argument("--points", type=int, default=0, help="number of points; 0 = the scene's own")
    parser.add_argument("--width", type=int, default=0, help="width of the pictures in pixels; 0 = their own")
    parser.add_argument("--height", type=int, default=0, help="height of the pictures in pixels; 0 = their own")
    parser.add_argument("--repeats", type=int, default=20, help="steps to time")
    parser.add_argument("--rounds", type=int, default=3, help="scale: runs of each combination")
    parser.add_argument("--combinations", default="1x1,2x1,1x2", help="scale: ranks x threads to compare")
    parser.add_argument("--rate", default="", help="sync: of the cable, as 200mbit; by default such that the exchange "
                                                  "takes half of a synchronous step")
    parser.add_argument("--warm", type=int, default=200, help="sync: steps before those that are timed")
    parser.add_argument("--mpirun", default="", help="scale: launcher; by default the one beside this Python")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments, settings, options = _with_settings(parser, words)
    for name, least in (("points", 0), ("width", 0), ("height", 0), ("repeats", 1), ("rounds", 1)):
        if arguments[name] < least:
            raise SettingsError(f"argument --{name} is {arguments[name]}; it must be at least {least}")
    if arguments.what == "sync":
        from .jobs.sync import run_bench_sync

        rest = _without(words[words.index("sync") + 2:], ("--rate", "--warm", "--repeats", "--rounds", "--json"))
        return run_bench_sync([arguments.scene], rest, warm=arguments.warm, steps=arguments.repeats,
                              rounds=arguments.rounds, rate=arguments.rate, as_json=arguments.json)
    if arguments.what == "scale":
        from .jobs.scale import run_bench_scale

        rest = _without(words[words.index("scale") + 1:],
                        ("--rounds", "--combinations", "--mpirun", "--threads", "--json"))
        return run_bench_scale(rest, arguments.combinations, arguments.rounds, mpirun=arguments.mpirun,
                               as_json=arguments.json)
    from .jobs.bench import run_bench_step

    return run_bench_step(arguments.scene, settings, options, points=arguments.points, width=arguments.width,
                          height=arguments.height, repeats=arguments.repeats, as_json=arguments.json)


def _without(words: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the arguments without those of ``names`` and their values; ``--json`` has none."""
    kept, words = [], list(words)
    while words:
        word = words.pop(0)
        name, has_value, _ = word.partition("=")
        if name not in names:
            kept.append(word)
        elif name != "--json" and not has_value:
            words.pop(0)
    return kept


def _plan(parser: LineParser, words: Sequence[str]) -> int | None:
    parser.add_argument("source", type=Path, metavar="SCENE|PROFILE", help="folder of a scene, or a profile (.npz)")
    parser.add_argument("--ranks", type=int, default=0, help="ranks to plan for")
    parser.add_argument("--schedule", action="store_true",
                        help="instead, how much the units in flight of --sync quality would share")
    parser.add_argument("--window", type=int, default=0, help="with --schedule, units in flight; 0 = 2 and 4")
    parser.add_argument("--hosts", type=int, default=1, help="hosts they sit on")
    parser.add_argument("--views-per-rank", type=int, default=1, help="views of a step, over ranks")
    parser.add_argument("--patches", type=int, default=0,
                        help="patches along each side of a picture; 0 = 8, or those of the profile")
    parser.add_argument("--codec", choices=("fp32", "fp16", "bf16", "int8"), default="fp32",
                        help="form of splats and gradients")
    parser.add_argument("--curve", action="store_true", help="also with points ever more even, down to 1.05")
    parser.add_argument("--json", action="store_true", help="print one JSON object, a variant by its name")
    arguments, settings, options = _with_settings(parser, words)
    if arguments.schedule:
        from .jobs.schedule import check_window, run_schedule

        check_window(arguments.window)
        return run_schedule(arguments.source, settings, options, window=arguments.window, as_json=arguments.json)
    from .jobs.plan import check_plan, run_plan

    check_plan(arguments.ranks, arguments.hosts, arguments["views_per_rank"], arguments.patches)
    return run_plan(arguments.source, settings, options, ranks=arguments.ranks, hosts=arguments.hosts,
                    views_per_rank=arguments["views_per_rank"], patches=arguments.patches, codec=arguments.codec,
                    curve=arguments.curve, as_json=arguments.json)


def _demo(parser: LineParser, words: Sequence[str]) -> int | None:
    parser.add_argument("-o", "--output", type=Path, default=Path("demo-run"), metavar="DIR", help="folder to write to")
    _add_threads(parser)
    arguments = _parse(parser, words)
    from .jobs.demo import run_demo

    return run_demo(arguments.output)


def _add_run(parser: LineParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run, as `gaian train -o` wrote it")


def _add_step(parser: LineParser) -> None:
    parser.add_argument("--step", type=int | None, metavar="N", help="step of the checkpoint; the newest by default")


def _add_threads(parser: LineParser) -> None:
    parser.add_argument("--threads", type=int, default=0, help="threads; 0 = all cores this process may use")


def _parse(parser: LineParser, words: Sequence[str]) -> Any:
    """Parse a command line without settings and apply ``--threads``."""
    arguments = parser.parse_args(list(words))
    if "threads" in arguments:
        _use_threads(arguments.threads)
    return arguments


def _with_settings(parser: LineParser, words: Sequence[str]) -> tuple[Any, Settings, Any]:
    """Parse a command line with settings and apply their ``threads``."""
    from .config import parse_settings, settings_files

    parser.add_argument("--config", type=Path | None, metavar="FILE", help="TOML file of settings; the command line "
                                                                          "wins over it")
    arguments, settings, options = parse_settings(parser, words, settings_files(words))
    _use_threads(settings.threads)
    return arguments, settings, options


def _use_threads(threads: int) -> None:
    from .backends.threads import use_threads

    if threads < 0:
        raise SettingsError(f"argument --threads is {threads}; it must be at least 0")
    use_threads(threads)


VERBS = {
    "train": Verb("train SCENE -o RUN [--resume] [--config FILE] [--SETTING VALUE …]",
                  "Train a scene from posed pictures.", _train, many_ranks=True),
    "evaluate": Verb("evaluate RUN [--json] [--step N] [--threads T]",
                     "Measure PSNR and SSIM on the test views of a run.", _evaluate),
    "render": Verb("render RUN [-o DIR] [--path CAMERAS.json | --split test|train] [--maps] [--threads T]",
                   "Render views of a run to PNG files.", _render),
    "export": Verb("export RUN -o FILE.ply [--time T]", "Write a run's points as a standard 3DGS PLY file.",
                   _export),
    "inspect": Verb("inspect CHECKPOINT [--json] [--digest]", "Summarise a checkpoint.", _inspect),
    "bench": Verb("bench step|scale SCENE [--points N] [--width W] [--height H] [--repeats K] [--rounds N] [--json] "
                  "[--SETTING VALUE …]", "Time a training step and its phases, and how it scales.", _bench,
                  many_ranks=True),
    "plan": Verb("plan SCENE|PROFILE --ranks R|--schedule [--window K] [--hosts H] [--views-per-rank B] [--patches N] "
                 "[--codec C] [--curve] [--json] [--SETTING VALUE …]",
                 "Tell what any number of ranks would send and hold.", _plan),
    "demo": Verb("demo [-o DIR] [--threads T]", "Make a small procedural city, train it and show the result.", _demo),
}


if __name__ == "__main__":
    sys.exit(main())
