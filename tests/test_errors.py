"""Every error can be caught as ours, and as the built-in error that a caller would expect."""

from __future__ import annotations

import inspect
import pickle

import numpy as np
import pytest

from leapwise import errors

EXPECTED = {
    errors.InputError: ValueError,
    errors.OutputError: TypeError,
    errors.SurrogateError: RuntimeError,
    errors.StartError: ValueError,
    errors.GradientError: ValueError,
    errors.ImproperError: ValueError,
    errors.DataError: FileNotFoundError,
    errors.MissingExtraError: ImportError,
    errors.BudgetError: RuntimeError,
    errors.EvaluationError: RuntimeError,
    errors.ArchiveError: ValueError,
    errors.EvaluationTimeout: TimeoutError,
    errors.ModelError: RuntimeError,
    errors.WorkerError: RuntimeError,
    errors.EngineClosed: RuntimeError,
    errors.LedgerError: OSError,
    errors.LedgerDamaged: errors.LedgerError,
    errors.LedgerBusy: errors.LedgerError,
    errors.LedgerMismatch: ValueError,
}


def make(kind):
    return kind("what happened", np.ones(2)) if kind is errors.EvaluationError else kind("what happened")


def test_the_table_is_complete():
    ours = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
    }
    assert ours == {errors.LeapwiseError, *EXPECTED}


@pytest.mark.parametrize(("kind", "builtin"), EXPECTED.items(), ids=[kind.__name__ for kind in EXPECTED])
def test_bases(kind, builtin):
    assert issubclass(kind, errors.LeapwiseError)
    assert issubclass(kind, builtin)
    with pytest.raises(builtin, match=r"^what happened$"):
        raise make(kind)


@pytest.mark.parametrize("kind", EXPECTED, ids=[kind.__name__ for kind in EXPECTED])
def test_errors_survive_another_process(kind):
    copy = pickle.loads(pickle.dumps(make(kind)))
    assert type(copy) is kind
    assert str(copy) == "what happened"
