"""How rows of parameters are evaluated: in this process, or on any executor.

An engine is given rows inside the bounds and yields an `Answer` for each as it completes. It knows nothing of
retries, limits or counts, which are the `Evaluator`'s, and nothing of chains. What it promises: an answer depends
on the parameters of its row alone, never on the other rows, the worker or the order of completion; whatever the
model does (raises, exits, hangs, kills its process) ends as an answer or as a typed error, not as a wait for ever.
"""

from understudy.targets.engines.answer import Answer, Engine
from understudy.targets.engines.blas import BlasThreads
from understudy.targets.engines.choose import engine_for, on_cores
from understudy.targets.engines.in_process import InProcess
from understudy.targets.engines.on_executor import OnExecutor

__all__ = ["Answer", "BlasThreads", "Engine", "InProcess", "OnExecutor", "engine_for", "on_cores"]
