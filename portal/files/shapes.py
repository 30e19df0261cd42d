"""Files as OpenAI shows them."""

from __future__ import annotations

from typing import Any

from portal.files.models import StoredFile


def file_object(row: StoredFile) -> dict[str, Any]:
    """Return the File object. `processed` at once: a client that waits for it polls until then."""
    return {
        "id": row.public_id,
        "object": "file",
        "bytes": row.size,
        "created_at": int(row.created_at.timestamp()),
        "expires_at": int(row.expires_at.timestamp()) if row.expires_at else None,
        "filename": row.filename,
        "purpose": row.purpose,
        "status": "processed",
        "status_details": None,
        "lines": row.lines,
        "sha256": row.sha256,
    }
