"""What a record says of the software beside its versions: the commit, where somebody
names it, and the launch configurations that the owner of the GPU had timed there, where
what is measured reads them.
"""

import os
import re
from collections.abc import Iterable

from systems import ROOT
from systems.attention.implementations import IMPLEMENTATIONS
from systems.attention.triton import tuned
from systems.records.source_hash import Reach

READS_TUNED = ("systems.attention.triton.chooser", "owners")
TUNED = "launch configurations"
COMMIT = "GIT_COMMIT"


def named_commit() -> str | None:
    """The commit that the environment names, of a tree that has no repository or lies
    in that of another commit (an archive, a copy). ValueError where it names none.
    """
    text = os.environ.get(COMMIT)
    if text is None:
        return None
    # SHA-256 has 64 digits.
    if not re.fullmatch("[0-9a-f]{7,64}", text):
        raise ValueError(
            f"{COMMIT} must be a commit, 7 to 64 digits of 0-9 and a-f, "
            f"got {text!r:.80}: set it right, or unset it"
        )
    return text


def tuned_software(
    module: str, attention: Iterable[str], slug: str, triton: str
) -> dict[str, str]:
    """Their digest; nothing where this GPU has none, or nobody reads them."""
    digest = tuned.digest(slug, triton)
    if digest is None:
        return {}
    named = (IMPLEMENTATIONS[name].split(":") for name in attention)
    reached = Reach(ROOT)
    for place in [(module, None), *((where, what) for where, what in named)]:
        reached.follow(place)
    return {TUNED: f"tuned {digest}"} if READS_TUNED in reached.places else {}
