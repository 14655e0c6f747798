"""Check golden files: ``python -m tests.check_golden FILE… [--backend cpu]``.

Prints the largest relative error of every array beside its tolerance (``tests/golden/compare.py`` defines both); the
exit code is 1 when any array misses its tolerance or a file cannot be checked.
"""

from __future__ import annotations

import argparse
import sys

from gaian_hpc.errors import GaianError

from .golden.cases import CaseError
from .golden.report import check


def main(arguments: list[str] | None = None) -> int:
    """Check the files named on the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.check_golden", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", metavar="FILE", help="golden .npz files of any known kind")
    parser.add_argument("--backend", default="cpu", help="cpu, cuda, emulated (the cuda kernels on the CPU), or "
                                                         "reference (the float64 oracle); default cpu")
    options = parser.parse_args(arguments)
    failed = []
    for path in options.files:
        try:
            report = check(path, options.backend)
        except (CaseError, GaianError) as error:
            print(f"ERROR {error}", file=sys.stderr)
            failed.append(path)
            continue
        print("\n".join(report.lines()))
        if not report.ok:
            failed.append(path)
    print(f"{len(options.files) - len(failed)} of {len(options.files)} files ok"
          + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
