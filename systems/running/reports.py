"""Report progress to the parent process as JSON lines; exit when the parent ends."""

import json
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import IO, Any

# Seconds between SIGTERM and a forced exit.
GRACE = 5
# The stream to which reports are written; None means standard output.
reports: IO[str] | None = None


class CannotStart(Exception):
    """The experiment can't be measured; the message says why and what to do."""


def reserve_stdout() -> None:
    """Reserve standard output for reports, and redirect other output to stderr."""
    global reports
    reports = os.fdopen(os.dup(1), "w")
    # End a line that something printed before, such as a `sitecustomize`.
    reports.write("\n")
    os.dup2(2, 1)


def exit_when_terminated() -> None:
    """Make SIGTERM raise SystemExit, so that `finally` blocks clean up."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.unraisablehook = exit_again


def exit_again(ignored: Any) -> None:
    """As unraisablehook, send SIGTERM again if a destructor swallowed SystemExit."""
    if ignored.exc_type is not SystemExit:
        return sys.__unraisablehook__(ignored)
    threading.Timer(0.01, os.kill, [os.getpid(), signal.SIGTERM]).start()


def end_with_parent(parent: int) -> None:
    """Terminate this process when its parent (a process ID) ends or is killed."""
    threading.Thread(target=wait_and_exit, args=(parent,), daemon=True).start()


def wait_and_exit(parent: int) -> None:
    """Wait until the parent (a process ID) has ended, then terminate this process."""
    with suppress(OSError, AttributeError):
        # On Linux, wait without polling, which would disturb timings.
        if os.getppid() == parent:
            select.select([os.pidfd_open(parent)], [], [])
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    os._exit(1)


def report(**event: Any) -> None:
    """Print fields (`event="row"`, ...) as a JSON line. Exit if the pipe is closed."""
    try:
        print(json.dumps(event), file=reports, flush=True)
    except BrokenPipeError:
        # Discard output, or Python would report the error again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (reports or sys.stdout).fileno())
        sys.exit(1)
