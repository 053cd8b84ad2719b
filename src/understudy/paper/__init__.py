"""The paper's experiments, each a function that returns its numbers and draws its picture."""

from understudy.paper.agreement import AgreementCheck, agreement_check
from understudy.paper.cells import Cells
from understudy.paper.figure import Figure, save_table
from understudy.paper.figure1 import Figure1, figure1
from understudy.paper.figure2 import Figure2, figure2
from understudy.paper.figure3 import Figure3, figure3
from understudy.paper.figure4 import Figure4, figure4
from understudy.paper.figure5 import Figure5, figure5
from understudy.paper.figure6 import Figure6, figure6
from understudy.paper.figure7 import Figure7, figure7
from understudy.paper.figure8 import Figure8, figure8
from understudy.paper.table1 import Table1, table1

__all__ = [
    "AgreementCheck",
    "Cells",
    "Figure",
    "Figure1",
    "Figure2",
    "Figure3",
    "Figure4",
    "Figure5",
    "Figure6",
    "Figure7",
    "Figure8",
    "Table1",
    "agreement_check",
    "figure1",
    "figure2",
    "figure3",
    "figure4",
    "figure5",
    "figure6",
    "figure7",
    "figure8",
    "save_table",
    "table1",
]
