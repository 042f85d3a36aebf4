"""The folder of compiled kernels: it must be writable, and it should be on a disk of
this machine.
"""

import os
from pathlib import Path
from tempfile import TemporaryFile

# File systems that many machines share: each look at a kernel asks a server.
NETWORK = {
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs"),
    *("panfs", "wekafs", "glusterfs", "fuse.glusterfs", "fuse.sshfs"),
}
REMEDY = "set TRITON_CACHE_DIR to a folder on a disk of this machine"


def compiled_folder() -> Path:
    """Return where Triton keeps compiled kernels."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(home, ".triton", "cache")


def name_compiled_folder() -> None:
    """Set the folder for this process and its children. Otherwise PyTorch's compiler
    sets another one with its first kernel, and what was compiled ahead is not found.
    """
    os.environ["TRITON_CACHE_DIR"] = str(compiled_folder())


def unwritable(folder: Path) -> str:
    """Say why no kernel can be kept in a folder, and the remedy; nothing if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        why = f"can't keep compiled kernels in {folder}: {error.strerror}"
        return f"{why}; {REMEDY}"


def shared_by_machines(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Warn of a folder on a network file system, where kernels are found slowly and not
    always by several processes at once. Return nothing for other folders.
    """
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    whole, kinds = folder.resolve(), {}
    for line in lines:
        _, place, kind, *_ = line.split()
        kinds[Path(place.replace("\\040", " "))] = kind
    above = [place for place in (whole, *whole.parents) if place in kinds]
    kind = kinds[above[0]] if above else ""
    return f"compiled kernels are kept on {kind}: {REMEDY}" if kind in NETWORK else ""
