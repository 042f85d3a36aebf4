"""Where kernels that were compiled are kept: a folder that can be written, and best one
on a disk of this machine.
"""

import os
from pathlib import Path
from tempfile import TemporaryFile

# Types of file systems that many machines share: each look at a kernel asks a server.
NETWORK = {
    *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "afs"),
    *("panfs", "wekafs", "glusterfs", "fuse.glusterfs", "fuse.sshfs"),
}
REMEDY = "set TRITON_CACHE_DIR to a folder on a disk of this machine"


def compiled_folder() -> Path:
    """Where Triton keeps them."""
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    given = os.environ.get("TRITON_CACHE_DIR")
    return Path(given) if given else Path(home, ".triton", "cache")


def name_compiled_folder() -> None:
    """Name it to this process and those that it starts. Where nobody does, PyTorch's
    compiler names another once it has a kernel, and what was compiled ahead is not
    found from then on.
    """
    os.environ["TRITON_CACHE_DIR"] = str(compiled_folder())


def unwritable(folder: Path) -> str:
    """Why nothing can be kept there, and what to do about it; nothing where it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        why = f"can't keep compiled kernels in {folder}: {error.strerror}"
        return f"{why}; {REMEDY}"


def shared_by_machines(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The same of a folder on a file system that machines share: kernels are found
    there slowly, and by several processes at once not always.
    """
    try:
        lines = mounts.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    whole, types = folder.resolve(), {}
    for line in lines:
        _, place, kind, *_ = line.split()
        types[Path(place.replace("\\040", " "))] = kind
    above = [place for place in (whole, *whole.parents) if place in types]
    kind = types[above[0]] if above else ""
    return f"compiled kernels are kept on {kind}: {REMEDY}" if kind in NETWORK else ""
