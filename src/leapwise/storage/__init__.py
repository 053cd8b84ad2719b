"""Every exact evaluation on disk before it is used: one SQLite file, checksummed row by row, without pickle.

A run is a deterministic program of its seed and its exact evaluations, so that a file of them is all it takes to
resume. The place of an evaluation is ``(lane, index)``: a *lane* is one sequential stream of evaluations, and
`index` counts 0, 1, 2, ... in it.

What is promised:

* what `Ledger.append` has returned from survives the death of the process, however sudden;
* a power cut or a crash of the system costs, on a disk that keeps its word, at most the evaluations since the last
  flush, whose time in the model adds up to less than `FLUSH_SECONDS`, and never the file;
* a value that is read is the value that was written, or it is not given out: a row that does not match its checksum
  is left out with a `LedgerWarning` (it is then simply evaluated again), anything else that is wrong is a
  `LedgerDamaged`, and `salvage` copies what is whole into a new file;
* one process writes; any number may read meanwhile, and never get in its way;
* nothing in a ledger is ever executed, and no array is made before its size has been checked.
"""

from leapwise.storage.file import FORMAT_VERSION, Header, LedgerWarning
from leapwise.storage.ledger import FLUSH_SECONDS, Ledger, Tally
from leapwise.storage.rows import Failure, Row
from leapwise.storage.salvage import Salvaged, salvage

__all__ = [
    "FLUSH_SECONDS",
    "FORMAT_VERSION",
    "Failure",
    "Header",
    "Ledger",
    "LedgerWarning",
    "Row",
    "Salvaged",
    "Tally",
    "salvage",
]
