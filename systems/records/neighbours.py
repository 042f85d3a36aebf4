"""Whether another experiment is being measured on this host: what the host decides
takes longer then.
"""

import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from systems.records.files import open_plain

NOTE = "another experiment ran on this host"


@contextmanager
def measuring() -> Iterator[Callable[[], bool]]:
    """Inside, this process counts as one that measures. Yields what tells whether
    another of this user did since then.

    One that measures holds a shared lock, of which the kernel lets go however the
    process ends, and dates the file. OSError where something else lies in its place:
    a link, a FIFO, another user's file.
    """
    path = Path(tempfile.gettempdir()) / f"transformer-systems-{os.getuid()}.lock"
    with open_plain(path, os.O_RDWR | os.O_CREAT) as file:
        if os.fstat(file.fileno()).st_uid != os.getuid():
            raise PermissionError(errno.EPERM, "it is another user's", str(path))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            was_there = False
        except BlockingIOError:
            fcntl.flock(file, fcntl.LOCK_SH)
            was_there = True
        now = time.time_ns()
        os.utime(file.fileno(), ns=(now, now))
        dated = os.fstat(file.fileno()).st_mtime_ns
        # Only now: who comes next dates the file after this.
        fcntl.flock(file, fcntl.LOCK_SH)
        yield lambda: was_there or os.fstat(file.fileno()).st_mtime_ns != dated
