"""Folders as archives, for platforms that unpack them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path


def archive(folder: Path) -> bytes:
    """A folder as a zip archive: the same bytes for the same files."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o100644 << 16
                file.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return data.getvalue()
