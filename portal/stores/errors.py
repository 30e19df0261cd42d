"""What goes wrong with embedded stores, each as one sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

TAIL_LINES = 5


class StoreError(Exception):
    """A store cannot run; the message is one plain sentence for the person at the terminal."""


def from_log(name: str, log: Path) -> StoreError:
    """Explain from its log why a store ended instead of starting."""
    text = log.read_text(errors="replace") if log.exists() else ""
    if "No space left on device" in text:
        return StoreError(
            f"The disk that holds {log.parent} is full, so {name} cannot start: "
            "free some space, or set DATA_DIR to a folder on another disk."
        )
    last = " / ".join(text.strip().splitlines()[-TAIL_LINES:]) or "it said nothing"
    return StoreError(f"{name} did not start; its log is {log} and ends with: {last}")
