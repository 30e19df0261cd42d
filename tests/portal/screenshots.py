"""Keeps a picture of every page, light and dark, on a desk and a phone.

python -m tests.portal.screenshots [FOLDER]          every page
python -m tests.portal.screenshots [FOLDER] status   the status page in every state of the card
"""

from __future__ import annotations

import os
import sys

import pytest


def main() -> int:
    """Run the browser tour, the long half included, with pictures."""
    folder = sys.argv[1] if len(sys.argv) > 1 else "var/screenshots"
    os.environ["SCREENSHOTS"] = folder
    file = "test_status_looks.py" if sys.argv[2:] == ["status"] else "test_browser.py"
    code = pytest.main([f"tests/portal/{file}", "-k", "sound", "-q", "-p", "no:randomly"])
    sys.stdout.write(f"Pictures are in {folder}\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
