"""The paper's experiments: each is a function that computes its numbers, and a result that draws its picture.

=================== ========================================================================================
`experiments`       the four posteriors, the paper's settings and printed figures, its effective sample size
`cells`             finished pieces of an experiment, kept on disk
`surrogate_flow`    acceptance of the flow of a surrogate, for figures 2 to 5
`learning`          the runs of figures 7 and 8
`moments`           means and standard deviations with their errors, for figures 6 and 8 and the agreement check
`table1`, `figureN`  compute, describe and draw one table or figure each
`reproductions`     all of them by the names of the command line; what every result offers; colours and files
=================== ========================================================================================
"""

from leapwise.paper.cells import Cells
from leapwise.paper.figure3 import Figure3, figure3
from leapwise.paper.figure6 import AgreementCheck, Figure6, agreement_check, figure6
from leapwise.paper.figures1_2 import Figure1, Figure2, figure1, figure2
from leapwise.paper.figures4_5 import Figure4, Figure5, figure4, figure5
from leapwise.paper.figures7_8 import Figure7, Figure8, figure7, figure8
from leapwise.paper.reproductions import Figure, save_table
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
