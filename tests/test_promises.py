"""Each promise of the README has a page that names its tests and the command that proves it."""

from __future__ import annotations

import re

import pytest

from tests.support.places import REPO

PAGES = sorted((REPO / "docs/promises").glob("*.md"))


def test_the_readme_and_the_site_make_the_same_five_promises():
    names = [page.name for page in PAGES]
    for first_page, folder in (("README.md", "docs/"), ("docs/index.md", "")):
        text = (REPO / first_page).read_text(encoding="utf-8")
        promised = re.findall(rf"^\d\. \[.*\]\({folder}promises/(.*?)\)", text, re.MULTILINE)
        assert len(promised) == 5 and sorted(promised) == names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_promise_names_its_tests_and_the_command_that_make_promises_runs(page):
    text = page.read_text(encoding="utf-8")
    tests = re.findall(r"`(tests/[\w/]+\.py)`", text)
    assert len(tests) >= 5
    for name in tests:
        assert (REPO / name).is_file(), name
    proof = re.findall(r"```bash\n(python -m .*?)\n```", text, re.DOTALL)[0]
    make_promises = (REPO / "Makefile").read_text(encoding="utf-8").replace("$(BIN)/", "")
    for command in proof.splitlines():
        assert f"\t{command}\n" in make_promises
