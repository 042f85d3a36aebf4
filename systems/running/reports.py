"""What a process that measures tells the one that started it: lines of JSON on its
standard output.
"""

import json
import os
import signal
import sys
from typing import Any


class CannotStart(Exception):
    """Why this stem can't be measured now, and what to do about it."""


def exit_when_terminated() -> None:
    """Let SIGTERM end this process as an error would: what it started is ended, its
    temporary folders are deleted.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def report(**event: Any) -> None:
    """Tell the parent. Without one (it was killed) end as an error would: every row
    measured so far is on disk.
    """
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        # Python would complain once more when it flushes what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
