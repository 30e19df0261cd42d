"""`make bench`: every benchmark beside this file, one after the other, on stores of their own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from portal.stores import embedded

HERE = Path(__file__).parent
NOT_BENCHES = {"__init__", "__main__", "others", "peers", "ratio", "rig"}


def main() -> int:
    """Run the benchmarks named on the command line, or all; each gets an empty Valkey.

    `--long` is handed on: a benchmark then counts longer.
    """
    options = [word for word in sys.argv[1:] if word.startswith("--")]
    found = {path.stem for path in HERE.glob("*.py") if not path.stem.startswith("test_")}
    names = [n for n in sys.argv[1:] if n not in options] or sorted(found - NOT_BENCHES)
    for name in names:
        print(f"\n# {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="fairway-bench-") as folder:
            store = embedded.start_valkey(Path(folder), durable=False)
            try:
                done = subprocess.run(
                    [sys.executable, "-m", f"tests.bench.{name}", store.url, *options]
                )
            finally:
                store.stop()
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
