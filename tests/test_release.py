"""Version, change log, citation and the workflow that publishes state the same release."""

from __future__ import annotations

import re
import subprocess
import sys

import yaml
from packaging.version import Version

import grpo_ext
from tests.support.places import REPO

VERSION = Version(grpo_ext.__version__)


def test_the_version_is_written_as_pypi_writes_it():
    assert str(VERSION) == grpo_ext.__version__


def test_the_change_log_begins_with_the_version_and_says_whether_it_is_released():
    text = (REPO / "CHANGELOG.md").read_text(encoding="utf-8")
    [first, *_] = re.findall(r"^## (.+)$", text, re.MULTILINE)
    name, _, state = first.partition(" ")
    assert name == VERSION.base_version
    assert (state == "(not released yet)") == VERSION.is_devrelease


def test_the_citation_names_the_version():
    citation = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == grpo_ext.__version__
    assert citation["cff-version"] == "1.2.0" and citation["license"] == "Apache-2.0"


def test_the_workflow_publishes_only_a_tag_that_is_the_version():
    text = (REPO / ".github/workflows/release.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    [pattern] = workflow[True]["push"]["tags"]  # YAML reads the key `on` as true
    tag = pattern.replace(".", r"\.")
    assert re.fullmatch(tag, f"v{VERSION.base_version}")
    assert not re.fullmatch(tag, "v0.1.0.dev0")
    [command] = [
        step["run"] for step in workflow["jobs"]["build"]["steps"] if "REF_NAME" in str(step)
    ]
    command = command.replace("python -c", f"{sys.executable} -c")
    for ref, status in ((f"v{VERSION}", 0), ("v9.9.9", 1)):
        environment = {"GITHUB_REF_NAME": ref}
        done = subprocess.run(["sh", "-c", command], cwd=REPO, env=environment, check=False)
        assert done.returncode == status


def test_what_is_published_has_passed_the_tests():
    text = (REPO / ".github/workflows/release.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    runs = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert runs.index("make lint types test") < runs.index("python -m build")
    assert runs[-1] == "make wheel DIST=dist"  # the files that the next job publishes
    assert jobs["publish"]["needs"] == "build"


def test_only_the_job_that_publishes_may_prove_its_identity():
    text = (REPO / ".github/workflows/release.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert "permissions" not in workflow["jobs"]["build"]
    assert workflow["jobs"]["publish"]["permissions"] == {"id-token": "write"}
    actions = [step["uses"] for step in workflow["jobs"]["publish"]["steps"]]
    assert actions == ["actions/download-artifact@v4", "pypa/gh-action-pypi-publish@release/v1"]
