"""What has its final name must be there after a crash of the node too."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Brings a file's content to the disk, or a directory's names: renames in it last then."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
