"""Open regular files only, and write files whole."""

import errno
import os
import re
import stat
from pathlib import Path
from typing import IO

# Windows has the last alone, which keeps it from rewriting the ends of lines.
ALWAYS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))

# Folders of docs/results that are no GPU's.
RESERVED = ("", "cpu", "meta", "quick")


def slug_of(name: str) -> str:
    """A name as a folder: "NVIDIA A100-SXM4-40GB" -> "nvidia-a100-sxm4-40gb"."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"gpu-{slug}".strip("-") if slug in RESERVED else slug


def open_regular(path: Path, flags: int) -> IO[bytes]:
    """Open a regular file, without following a link to write. OSError for others."""
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    flags |= ALWAYS | (getattr(os, "O_NOFOLLOW", 0) if writes else 0)
    handle = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(handle, "r+b" if flags & os.O_RDWR else "wb" if writes else "rb")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Put text at `path` in one step: a reader sees the old file or the new one, also
    if the disk is full or this is interrupted.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with open_regular(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
