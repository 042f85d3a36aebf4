"""Test the workflows that test changes and publish the site."""

import ast
import re
import shlex

import pytest
import yaml

from systems import ROOT

(TRITONS,) = re.findall(r"^TRITONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.M)
VERSIONS = TRITONS.split()

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w./-]+):", (ROOT / "Makefile").read_text(), re.M))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_names_exist_and_permissions_are_read_only(path) -> None:
    # Use BaseLoader, because YAML 1.1 reads the key `on` as true.
    workflow = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)
    assert workflow.keys() == {"name", "on", "permissions", "concurrency", "jobs"}
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert set(job.get("needs", "").split()) <= workflow["jobs"].keys(), name
        assert int(job["timeout-minutes"]) > 0
        # Each expression refers to a matrix variable or a step's output that exists.
        known = {
            *(f"matrix.{key}" for key in job.get("strategy", {}).get("matrix", {})),
            *(f"steps.{step['id']}" for step in job["steps"] if "id" in step),
        }
        named = re.findall(r"\$\{\{ ((?:matrix|steps)\.\w+)", yaml.dump(job))
        assert set(named) <= known, name
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            if "uses" in step:
                assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
            else:
                program, *targets = shlex.split(step["run"])
                assert program == "make" and targets
                assert set(targets) <= TARGETS, step["run"]


def test_ci_matrix_covers_python_and_hopper_versions() -> None:
    path = ROOT / ".github/workflows/tests.yml"
    job = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)["jobs"]["cpu"]
    matrix, (step,) = job["strategy"]["matrix"], [s for s in job["steps"] if "env" in s]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    (other,) = matrix["include"]
    assert other["python"] in matrix["python"] and matrix["constraints"] == [""]
    assert step["env"] == {"PIP_CONSTRAINT": "${{ matrix.constraints }}"}
    # The constraints pin a pair of torch and Triton that the Hopper kernels
    # support.
    pair = (ROOT / other["constraints"]).read_text(encoding="utf-8")
    (version,) = re.findall(r"^triton==(.*)$", pair, re.M)
    assert version in VERSIONS
    limits = (ROOT / "systems/attention/hopper/limits.py").read_text(encoding="utf-8")
    (tested,) = re.findall(r"^VERSIONS = (\(.*\))$", limits, re.M)
    assert version.startswith(ast.literal_eval(tested))


def test_pages_workflow_sets_the_site_url() -> None:
    pages = (ROOT / ".github/workflows/pages.yml").read_text(encoding="utf-8")
    assert "SITE_URL: ${{ steps.pages.outputs.base_url }}/\n" in pages
