"""What a record says of the software that measured it: versions, the commit, the hash
of the source, and the launch configurations that the owner of the GPU had timed there,
where what is measured reads them.
"""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from systems import ROOT, lacks
from systems.attention.implementations import IMPLEMENTATIONS
from systems.attention.triton import tuned
from systems.experiments import Stem
from systems.records.device import Device
from systems.records.record import Git, Record
from systems.records.source_hash import Reach, source_hash
from systems.running.reports import CannotStart

# What a stem reaches that launches our kernels.
LAUNCHES = ("systems.attention.triton.chooser", "owner_configs")
TUNED = "launch configurations"
# A library of others, and how the implementations are called that it runs.
PEER, ITS = "flash-attn-4", "fa4"
COMMIT = "GIT_COMMIT"


def versions() -> dict[str, str]:
    """Versions of what the measured time depends on."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", PEER):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    if "torch" in sys.modules:
        import torch

        found["torch"] = str(torch.__version__)
        if torch.version.cuda:
            found |= {
                "cuda": torch.version.cuda,
                "cudnn": str(torch.backends.cudnn.version()),
            }
    return found


def that_count(software: dict[str, str], configs: list[Any]) -> dict[str, str]:
    """The versions of what these configurations run: a library that happens to be
    installed changes nothing for the others.
    """
    runs_peer = any(getattr(c, "implementation", "").startswith(ITS) for c in configs)
    return {k: v for k, v in software.items() if runs_peer or k != PEER}


def git_state() -> Git | None:
    """The commit that GIT_COMMIT names; else that of the tree, and whether what
    measures differed from it; None outside a repository.
    """
    try:
        # Whoever names it knows more than a repository that the tree was copied into.
        if commit := named_commit():
            return Git(commit, dirty=False)
    except ValueError as error:
        raise CannotStart(str(error)) from None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", "-C", ROOT, *arguments), capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return Git(
            git("rev-parse", "HEAD"),
            dirty=bool(git("status", "--porcelain", "--", "systems")),
        )
    except FileNotFoundError:
        why = "git is not installed"
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
    print(f"no commit is noted ({why}); set {COMMIT}", file=sys.stderr)
    return None


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


def hash_of(stem: Stem, configs: list[Any]) -> str:
    """The hash of the source that these configurations run."""
    return source_hash(stem.module, attention_of(configs))


def attention_of(configs: list[Any]) -> list[str]:
    """The implementations of attention that they name."""
    return sorted({c.attention for c in configs if hasattr(c, "attention")})


def attention_in(record: Record) -> list[str]:
    """The same of a record's rows, whatever came of them."""
    rows = (row.config for row in record.rows)
    return sorted({config["attention"] for config in rows if "attention" in config})


def tuned_software(
    module: str, attention: Iterable[str], slug: str, triton: str
) -> dict[str, str]:
    """The digest of launch configurations that were timed on this GPU; nothing where
    there are none, or nobody reads them.
    """
    digest = tuned.digest(slug, triton)
    if digest is None or not launches_kernels(module, attention):
        return {}
    return {TUNED: f"tuned {digest}"}


def launches_kernels(module: str, attention: Iterable[str]) -> bool:
    """Whether these implementations of attention, or what `module` measures beside
    them, launch our kernels.
    """
    named = (IMPLEMENTATIONS[name].split(":") for name in attention)
    reached = Reach(ROOT)
    for place in [(module, None), *((where, what) for where, what in named)]:
        reached.follow(place)
    return LAUNCHES in reached.places


def kernels_on(device: Device) -> dict[str, str]:
    """Which of our attention kernels a GPU gets with the software that is here, in
    words. Imports torch; nothing is known where the driver tells no capability.
    """
    if device.capability is None:
        return {}
    if said := lacks("torch", "triton"):
        return {"hopper, triton": said}
    from systems.attention.triton.available import describe_kernels_for

    major, minor = map(int, device.capability.split("."))
    version = metadata.version("triton")
    timed = len(tuned.configs(device.slug, version))
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return describe_kernels_for((major, minor), version, timed, interpreted)
