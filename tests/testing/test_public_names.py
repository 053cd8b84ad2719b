"""`leapwise.testing`: its names are listed and documented, and it is not imported for sampling."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys

import pytest

from leapwise import testing

# Plain records that checks return; and tables, which their module explains.
RECORDS = {"Balance", "Invariance", "SequentialTest", "LIES", "BROKEN"}


def test_everything_exported_is_listed():
    public = {
        name
        for name, value in vars(testing).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert public == set(testing.__all__)


@pytest.mark.parametrize("name", sorted(set(testing.__all__) - RECORDS))
def test_every_name_is_explained_with_an_example(name):
    text = inspect.getdoc(getattr(testing, name))
    assert text and doctest.DocTestParser().get_examples(text)


def test_sampling_does_not_bring_the_tests_along():
    code = "import sys, leapwise; sys.exit('leapwise.testing' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
