"""The software in a record: versions, commit, source hash, tuned configurations."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib import metadata
from typing import Any

from systems import ROOT, find_missing, git_environment
from systems.attention.triton import tuned
from systems.experiments import STEMS
from systems.records.device import Device
from systems.records.record import Git, Record
from systems.records.source_hash import experiment_places, reach_code
from systems.running.reports import CannotStart

# The function that finds tuned configurations for FlashAttention's Triton kernels.
LAUNCHES = ("systems.attention.triton.chooser", "load_tuned")
TUNED = "launch configurations"
# The package of FlashAttention-4, and the prefix of its implementations' names.
PEER, FA4 = "flash-attn-4", "fa4"
COMMIT = "GIT_COMMIT"


def installed_versions() -> dict[str, str]:
    """Return {name: version} of Python, torch, Triton, FA4, CUDA, cuDNN, if present."""
    by_name = {"python": platform.python_version()}
    for name in ("torch", "triton", PEER):
        with suppress(metadata.PackageNotFoundError):
            by_name[name] = metadata.version(name)
    if "torch" in sys.modules:
        import torch

        by_name["torch"] = str(torch.__version__)
        if torch.version.cuda:
            by_name["cuda"] = torch.version.cuda
            by_name["cudnn"] = str(torch.backends.cudnn.version())
    return by_name


def drop_unused_peer(software: dict[str, str], configs: list[Any]) -> dict[str, str]:
    """Return the versions, omitting FlashAttention-4 if no configuration runs it."""
    runs_peer = any(getattr(c, "implementation", "").startswith(FA4) for c in configs)
    return {k: v for k, v in software.items() if runs_peer or k != PEER}


def find_commit() -> Git | None:
    """Return the commit: GIT_COMMIT (raise CannotStart if malformed), git's or None."""
    # Prefer GIT_COMMIT, because git fails below if "systems" is in no commit.
    if (commit := os.environ.get(COMMIT)) is not None:
        # Git's hashes have 40 digits (SHA-1) or 64 (SHA-256), abbreviations at least 7.
        if re.fullmatch("[0-9a-f]{7,64}", commit):
            return Git(commit, dirty=False)
        raise CannotStart(
            f"{COMMIT} must be a commit, 7 to 64 digits of 0-9 and a-f, "
            f"got {commit!r:.80}: set it right, or unset it"
        )
    options: Any = {"env": git_environment(), "capture_output": True}

    def git(*arguments: str) -> str:
        # Without --no-optional-locks, git locks the index, so a commit could fail.
        line = ("git", "--no-optional-locks", "-C", ROOT, *arguments)
        process = subprocess.run(line, check=True, errors="replace", **options)
        return process.stdout.strip()

    try:
        code = ("systems/*.py", "systems/*.toml")  # Not tuned configurations (JSON).
        dirty = bool(git("status", "--porcelain", "-unormal", "--", *code))
        return Git(git("rev-parse", "HEAD", "HEAD:./systems").split()[0], dirty)
    except FileNotFoundError:
        reason = "git is not installed"
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
    print(f"no commit is noted ({reason}); set {COMMIT}", file=sys.stderr)
    return None


def attention_names(configs: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names in the configurations' field "attention", sorted, each once."""
    return sorted({config["attention"] for config in configs if "attention" in config})


def tuning_digest(
    module: str, attention: Iterable[str], slug: str, triton: str
) -> dict[str, str]:
    """Return {TUNED: digest of the configurations tuned for this GPU}, or {}."""
    digest = tuned.config_digest(slug, triton)
    if digest is None or not launches_kernels(module, attention):
        return {}
    return {TUNED: f"tuned {digest}"}


def is_tuning_current(record: Record) -> bool:
    """Return whether the record's digest of tuned configurations is the current one."""
    module, triton = STEMS[record.stem].module, record.software.get("triton", "")
    attention = attention_names(row.config for row in record.rows)
    current = tuning_digest(module, attention, record.device.slug, triton)
    return current.get(TUNED) == record.software.get(TUNED)


def launches_kernels(module: str, attention: Iterable[str]) -> bool:
    """Return whether the module or its attention functions launch tuned kernels."""
    reached = reach_code(experiment_places(module, attention))
    return any(LAUNCHES in statement.references for statement in reached)


def kernel_status(device: Device) -> dict[str, str]:
    """Return {backend: "runs, ..." or why not}; {} if unknown. This imports torch."""
    if device.capability is None:
        return {}
    if text := find_missing("torch", "triton"):
        return {"hopper, triton": text}
    from systems.attention.triton.available import describe_by_capability

    major, minor = map(int, device.capability.split("."))
    version = metadata.version("triton")
    timed = len(tuned.configs(device.slug, version))
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return describe_by_capability((major, minor), version, timed, interpreted)
