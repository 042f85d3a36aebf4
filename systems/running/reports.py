"""What a process that measures tells the one that started it, by lines of JSON on its
standard output, and how it ends when that one is gone.
"""

import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import IO, Any

# How long a process that is told to end may take, in seconds.
GRACE = 5
# Where reports go; None is standard output, whatever it is just then.
reports: IO[str] | None = None


class CannotStart(Exception):
    """Why this stem can't be measured now, and what to do about it."""


def keep_output_for_reports() -> None:
    """Let everything else that is written to standard output, by an experiment or by a
    library, go to standard error: nobody can take it for a report.
    """
    global reports
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def exit_when_terminated() -> None:
    """Let SIGTERM end this process as an error would: what it started is ended, its
    temporary folders are deleted.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def end_with(parent: int) -> None:
    """Let this process end soon after its parent, even if that is killed."""
    threading.Thread(target=end_after, args=(parent,), daemon=True).start()


def end_after(parent: int) -> None:
    """Wait until the parent is gone; then end this process, whatever it does."""
    with suppress(OSError, AttributeError):
        # On Linux asleep until then, so that nothing that is timed is disturbed.
        if os.getppid() == parent:
            select.select([os.pidfd_open(parent)], [], [])
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def report(**event: Any) -> None:
    """Tell the parent. Without one (it was killed) end as an error would: every row
    measured so far is on disk.
    """
    try:
        print(json.dumps(event), file=reports, flush=True)
    except BrokenPipeError:
        # Python would complain once more when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (reports or sys.stdout).fileno())
        sys.exit(1)
