"""The paper's experiments, each a function that returns its numbers and draws its picture."""

from leapwise.paper.cells import Cells
from leapwise.paper.figure import Figure, save_table
from leapwise.paper.figure1 import Figure1, figure1
from leapwise.paper.figure2 import Figure2, figure2
from leapwise.paper.figure3 import Figure3, figure3
from leapwise.paper.figure6 import AgreementCheck, Figure6, agreement_check, figure6
from leapwise.paper.figures4_5 import Figure4, Figure5, figure4, figure5
from leapwise.paper.figures7_8 import Figure7, Figure8, figure7, figure8
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
