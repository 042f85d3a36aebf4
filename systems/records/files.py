"""Open regular files only, and write files atomically."""

import errno
import os
import re
import stat
from pathlib import Path
from typing import IO

# Flags of `os.open`. Windows has only O_BINARY, which preserves line ends.
OS_FLAGS = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))

# Folder names in docs/results that are reserved, so no GPU may have them.
RESERVED_FOLDERS = ("", "cpu", "meta", "quick")


def gpu_slug(name: str) -> str:
    """Return a GPU's folder name: "nvidia-l4" for "NVIDIA L4"."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"gpu-{slug}".strip("-") if slug in RESERVED_FOLDERS else slug


def open_regular(path: Path, flags: int) -> IO[bytes]:
    """Open a regular file with `os.open` flags. Refuse others, and links if writing."""
    writes = flags & (os.O_WRONLY | os.O_RDWR)
    flags |= OS_FLAGS | (getattr(os, "O_NOFOLLOW", 0) if writes else 0)
    handle = os.open(path, flags, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(handle, "r+b" if flags & os.O_RDWR else "wb" if writes else "rb")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file in one step, so that readers see either the old or the new file."""
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
