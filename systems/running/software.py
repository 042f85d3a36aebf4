"""What a record says of the software beside its versions: the launch configurations
that the owner of the GPU had timed there, where what is measured reads them.
"""

from collections.abc import Iterable

from systems import ROOT
from systems.attention import IMPLEMENTATIONS
from systems.attention.triton import tuned
from systems.records.source_hash import Reach

READS_TUNED = ("systems.attention.triton.chooser", "owners")
TUNED = "launch configurations"


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
