"""The plugin of `make newest` tells our uses of deprecated names from those of other packages."""

from __future__ import annotations

import logging
import warnings

import pytest

from tests.support import our_deprecations


def function_of(module: str, source: str, **names):
    """A function `run` as if it were written in a module of that name."""
    names["__name__"] = module
    exec(source, names)
    return names["run"]


@pytest.fixture
def plugin():
    our_deprecations.pytest_configure()
    yield our_deprecations
    our_deprecations.pytest_unconfigure()
    our_deprecations.FOUND.clear()


WARNS = function_of(
    "library.models",
    "import warnings\n"
    "def run(**kwargs):\n"
    "    warnings.warn('`old` is deprecated', FutureWarning, stacklevel=2)",
)
LOGS = function_of(
    "library.models",
    "import logging\ndef run(**kwargs):\n    logging.getLogger('x').warning('`old` is deprecated')",
)
CALLS = "def run(old=None):\n    called(old=old)"
FORWARD = "def forward(old):\n    called(old=old)\nrun = forward"


@pytest.mark.parametrize("library", [WARNS, LOGS])
def test_a_deprecated_name_is_whose_code_uses_it(plugin, library):
    ours = function_of("grpo_ext.seams.trl", CALLS, called=library)
    theirs = function_of("trl.trainer", CALLS, called=library)
    wrapper = function_of("peft.model", FORWARD, called=library)
    with warnings.catch_warnings(record=True):
        theirs()
        function_of("grpo_ext.seams.trl", CALLS, called=theirs)()
        plugin.pytest_runtest_teardown()
        for use in (ours, function_of("grpo_ext.seams.trl", CALLS, called=wrapper)):
            use()
            with pytest.raises(AssertionError, match=r"grpo_ext\.seams\.trl:2: `old` is deprec"):
                plugin.pytest_runtest_teardown()
    plugin.pytest_runtest_teardown()


def test_other_warnings_are_no_matter(plugin):
    library = function_of(
        "library.models", "import warnings\ndef run(**kwargs):\n    warnings.warn('slow')"
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        function_of("grpo_ext.seams.trl", CALLS, called=library)()
    assert [str(warning.message) for warning in told] == ["slow"]
    logging.getLogger("x").warning("old")
    plugin.pytest_runtest_teardown()
