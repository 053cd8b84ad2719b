"""The paper's experiments, each a function that returns its numbers and draws its picture."""

from understudy.paper.figure1 import Figure1, figure1

__all__ = ["Figure1", "figure1"]
