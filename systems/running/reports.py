"""What a process that measures tells the one that started it: lines of JSON on its
standard output.
"""

import json
import os
from typing import Any


class CannotStart(Exception):
    """Why this stem can't be measured now, and what to do about it."""


def report(**event: Any) -> None:
    """Tell the parent. Without one (it was killed) stop: every row measured so far is
    on disk.
    """
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        os._exit(1)
