"""Report progress to the parent as lines of JSON, and end when it is gone."""

import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import IO, Any

# Seconds that a terminated process may take to end.
GRACE = 5
# Where reports go; None is standard output.
reports: IO[str] | None = None


class CannotStart(Exception):
    """This stem can't be measured now; the message says why and what to do."""


def keep_output_for_reports() -> None:
    """Send all other output to standard error, so that nothing looks like a report."""
    global reports
    reports = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def exit_when_terminated() -> None:
    """Let SIGTERM raise SystemExit, so that children end and folders are deleted."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def end_with_parent(parent: int) -> None:
    """End this process soon after its parent, even if the parent is killed."""
    threading.Thread(target=wait_and_exit, args=(parent,), daemon=True).start()


def wait_and_exit(parent: int) -> None:
    """Wait until the parent has ended, then terminate this process."""
    with suppress(OSError, AttributeError):
        # Linux wakes this thread when the parent ends: no polling disturbs timings.
        if os.getppid() == parent:
            select.select([os.pidfd_open(parent)], [], [])
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def report(**event: Any) -> None:
    """Tell the parent; end this process if the parent was killed."""
    try:
        print(json.dumps(event), file=reports, flush=True)
    except BrokenPipeError:
        # Otherwise Python reports the error again when it flushes the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (reports or sys.stdout).fileno())
        sys.exit(1)
