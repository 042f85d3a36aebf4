"""Helpers for tests that read the built site from file://, without a network."""

import fcntl
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from systems import ROOT

try:
    from axe_playwright_python.base import AXE_SCRIPT
    from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("playwright is not installed", allow_module_level=True)

__all__ = ["AXE_SCRIPT", "Browser", "Locator", "Page", "expect", "sync_playwright"]

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"),
)

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

TWO_FRAMES = """new Promise(
    (done) => requestAnimationFrame(() => requestAnimationFrame(done))
)"""

OPEN_FOLDS = "document.querySelectorAll('details').forEach((one) => (one.open = true))"


def build_site(folder: Path, root: Path = ROOT, **environment: str) -> float:
    """Build the site; return the CPU seconds."""
    # Omit --quiet, which hides warnings from --strict.
    mkdocs = [sys.executable, "-m", "mkdocs"]
    command = [*mkdocs, "build", "--strict", "--site-dir", str(folder)]
    # Fix the date, so that builds around midnight are equal.
    fixed = {"NO_MKDOCS_2_WARNING": "1", "SOURCE_DATE_EPOCH": "1750000000"}
    environment = os.environ | fixed | environment
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    built = subprocess.run(
        command, cwd=root, env=environment, capture_output=True, text=True, timeout=120
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert built.returncode == 0, built.stdout + built.stderr
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def build_once(factory: pytest.TempPathFactory, name: str) -> Path:
    shared = factory.getbasetemp()
    # Processes of pytest-xdist have folders in one parent folder: build there.
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    folder, built = shared / name, shared / f"{name} is built"
    with open(shared / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build_site(folder)
            built.touch()
    return folder


def is_remote(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:", "about:"))


def open_first(page: Page, pages: list[Path], selector: str) -> Locator:
    """Open the first page that has the selector, and return what it selects."""
    for path in pages:
        page.goto(path.as_uri())
        if page.locator(selector).count():
            return page.locator(selector)
    return pytest.fail(f"no page has {selector}")
