"""How rows of parameters are evaluated: in this process, or on any executor.

An engine is given rows inside the bounds and yields an `Answer` for each as it completes. It knows nothing of
retries, limits or counts, which are the `Evaluator`'s, and nothing of chains. What it promises: an answer depends
on the parameters of its row alone, never on the other rows, the worker or the order of completion; whatever the
model does (raises, exits, hangs, kills its process) ends as an answer or as a typed error, not as a wait for ever.
"""

from leapwise.execution.engine import Answer, BlasThreads, Engine, InProcess
from leapwise.execution.evaluator import Counts, Evaluation, Evaluator
from leapwise.execution.executor import OnExecutor, engine_for, on_cores

__all__ = [
    "Answer",
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
