"""`make bench`: every benchmark beside this file, one after the other, on stores of their own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from portal.stores import embedded

HERE = Path(__file__).parent
NOT_BENCHES = {"__init__", "__main__", "peers", "rig"}


def main() -> int:
    """Run the benchmarks named on the command line, or all; each gets an empty Valkey."""
    names = sys.argv[1:] or sorted({path.stem for path in HERE.glob("*.py")} - NOT_BENCHES)
    for name in names:
        print(f"\n# {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="fairway-bench-") as folder:
            store = embedded.start_valkey(Path(folder), durable=False)
            try:
                done = subprocess.run([sys.executable, "-m", f"tests.bench.{name}", store.url])
            finally:
                store.stop()
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
