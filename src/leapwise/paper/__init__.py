"""The paper's experiments, each a function that returns its numbers and draws its picture."""

from leapwise.paper.agreement import AgreementCheck, agreement_check
from leapwise.paper.cells import Cells
from leapwise.paper.figure import Figure, save_table
from leapwise.paper.figure1 import Figure1, figure1
from leapwise.paper.figure2 import Figure2, figure2
from leapwise.paper.figure3 import Figure3, figure3
from leapwise.paper.figure4 import Figure4, figure4
from leapwise.paper.figure5 import Figure5, figure5
from leapwise.paper.figure6 import Figure6, figure6
from leapwise.paper.figure7 import Figure7, figure7
from leapwise.paper.figure8 import Figure8, figure8
from leapwise.paper.table1 import Table1, table1

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
