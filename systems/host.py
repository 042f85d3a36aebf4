"""Whether another experiment is being measured on this host: what the host decides takes longer then."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

NOTE = "another experiment ran on this host"


@contextmanager
def measuring() -> Iterator[Callable[[], bool]]:
    """Inside, this process counts as one that measures. Yields what tells whether another of this user does now.

    The kernel forgets a process however it ends.
    """
    with open(Path(tempfile.gettempdir()) / f"transformer-systems-{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)

        def others() -> bool:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            finally:
                # Asking lets go of the shared lock, also where it is refused.
                fcntl.flock(file, fcntl.LOCK_SH)
            return False

        yield others
