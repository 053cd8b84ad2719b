"""Exact evaluations: the one way to call the target, and where the calls run.

`Evaluator` takes positions and returns an `Evaluation`: it counts, retries, records to and replays from the ledger,
and checks. It hands rows of parameters to an `Engine`, which calls ``target.evaluate`` in this process (`InProcess`) or
on any executor (`OnExecutor`) and yields an `Attempt` for each call: values or an error, and seconds.
"""

from leapwise.execution.engine import Attempt, BlasThreads, Engine, InProcess
from leapwise.execution.evaluator import Counts, Evaluation, Evaluator
from leapwise.execution.executor_engine import OnExecutor, engine_for
from leapwise.execution.workers import on_cores

__all__ = [
    "Attempt",
    "BlasThreads",
    "Counts",
    "Engine",
    "Evaluation",
    "Evaluator",
    "InProcess",
    "OnExecutor",
    "engine_for",
    "on_cores",
]
