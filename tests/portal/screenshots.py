"""Keeps a picture of every page, light and dark, on a desk and a phone.

python -m tests.portal.screenshots [FOLDER]
"""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    """Run the browser tour, the long half included, with pictures."""
    folder = sys.argv[1] if len(sys.argv) > 1 else "var/screenshots"
    os.environ["SCREENSHOTS"] = folder
    code = pytest.main(["tests/portal/test_browser.py", "-k", "sound", "-q", "-p", "no:randomly"])
    sys.stdout.write(f"Pictures are in {folder}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
