"""Find the problem that the command line names: a built-in one, or an object in a user's file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from leapwise.errors import InputError, LeapwiseError
from leapwise.problems import registry
from leapwise.problems.registry import Problem
from leapwise.targets import ForwardTarget, Target

TARGETS = (Target, ForwardTarget, Problem)


def load_problem(what: str) -> Problem:
    """Return the problem called ``my_model.py:name``, or the built-in problem of that name."""
    if what.endswith(".py"):
        file, name = what, ""
    else:
        file, _, name = what.rpartition(":")
    if not file:
        return built_in(what)
    module = load_module(Path(file))
    if not name:
        raise InputError(f"say which target of {file} to sample, as {file}:NAME; {_candidates(module)}")
    if not hasattr(module, name):
        raise InputError(f"{file} has no {name!r}; {_candidates(module)}")
    return as_problem(getattr(module, name), what, module)


def built_in(name: str) -> Problem:
    """Return a built-in problem; the error names those that there are."""
    try:
        return registry.get(name)
    except InputError as error:
        if name in registry.NAMES:
            raise
        raise InputError(f"{error}; a target of your own is given as my_model.py:target") from error


def load_module(file: Path) -> ModuleType:
    """Run a user's file; it can import modules from its own folder, as when Python runs it."""
    if not file.is_file():
        raise InputError(f"there is no file {file}; check its name and the folder you are in ({Path.cwd()})")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent.resolve()))
    sys.modules.setdefault(file.stem, module)  # where dataclasses and pickle look for it
    try:
        spec.loader.exec_module(module)
    except LeapwiseError:
        raise
    except SyntaxError as error:
        where = f"{error.filename or file}, line {error.lineno}"
        raise InputError(f"{file} is not valid Python: {error.msg} ({where})") from error
    except (Exception, SystemExit) as error:
        raise InputError(
            f"{file} {_raised(error, file)}; fix it, or run it with python to see more"
        ) from error
    return module


def as_problem(value: Any, what: str, module: ModuleType) -> Problem:
    """Return a problem made from a problem, a target, or a function without arguments that returns one."""
    found = value
    if not isinstance(value, (*TARGETS, type)) and _takes_nothing(value):
        try:
            found = value()
        except LeapwiseError:
            raise
        except (Exception, SystemExit) as error:
            raise InputError(f"{what}() {_raised(error, Path(str(module.__file__)))}; fix it") from error
    if isinstance(found, Problem):
        return found
    if isinstance(found, (Target, ForwardTarget)):
        return Problem(name=what, description="", target=found)
    got = f"returned {type(found).__name__}" if found is not value else f"is {_kind(value)}"
    raise InputError(
        f"{what} {got}, not a Target, ForwardTarget or Problem, nor a function without arguments that "
        f"returns one; {_candidates(module)}"
    )


def _takes_nothing(value: Any) -> bool:
    if not callable(value):
        return False
    try:
        inspect.signature(value).bind()
    except (TypeError, ValueError):
        return False
    return True


def _candidates(module: ModuleType) -> str:
    """List the targets of a user's file."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    targets = [name for name, value in public.items() if isinstance(value, TARGETS)]
    makers = [
        f"{name}()"
        for name, value in public.items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and _takes_nothing(value)
    ]
    if not targets and not makers:
        return "it has no target: make one with leapwise.Target(...)"
    return f"it has {', '.join(targets + makers)}"


def _kind(value: Any) -> str:
    if inspect.isroutine(value):
        return "a function with arguments"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"


def _raised(error: BaseException, file: Path) -> str:
    """Name the error that a user's code raised, and the line of their file."""
    line, step = None, error.__traceback__
    while step is not None:
        if Path(step.tb_frame.f_code.co_filename).resolve() == file.resolve():
            line = step.tb_lineno
        step = step.tb_next
    where = "" if line is None else f" at line {line}"
    return f"raised {type(error).__name__}{where}: {error}"
