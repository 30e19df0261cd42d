"""Runs one measurement by its name."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

NAMES = ("cost", "rate", "size", "beside", "slots", "owners", "estimate", "prefix")


def main() -> int:
    """Parse, run, return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.batch", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True)
    for name in NAMES:
        module = importlib.import_module(f"tests.bench.batch.{name}")
        summary = (module.__doc__ or "").splitlines()[0]
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.arguments(command)
        command.set_defaults(run=module.run)
    given = parser.parse_args()
    print(f"{given.name}: {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())
