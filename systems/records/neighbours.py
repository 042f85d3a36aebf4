"""Whether another experiment is being measured on this host: what the host decides
takes longer then.
"""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOTE = "another experiment ran on this host"


@contextmanager
def measuring() -> Iterator[Callable[[], bool]]:
    """Inside, this process counts as one that measures. Yields what tells whether
    another of this user did since then.

    One that measures holds a shared lock, of which the kernel lets go however the
    process ends, and dates the file.
    """
    with open(
        Path(tempfile.gettempdir()) / f"transformer-systems-{os.getuid()}.lock", "a"
    ) as file:
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
