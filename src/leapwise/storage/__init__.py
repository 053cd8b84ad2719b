"""The ledger: every exact evaluation on disk before it is used, in one SQLite file, checksummed, without pickle.

A run is a deterministic program of its seed and its exact evaluations, so a file of the evaluations is enough to resume
it. The place of an evaluation is ``(sequence, index)``: the program asks for evaluations in one or several *sequences*,
and `index` counts 0, 1, 2, ... in each.

=============  ======================================================================
`ledger`       `Ledger`: rows of evaluations, failures, checkpoints; `salvage`
`replay`       `Replay`: recorded evaluations first, then new ones
`archive`      `Archive`: kernels, surrogates and states as arrays and JSON
`file`         how the file is opened, locked and checked
`rows`         records with checksums
=============  ======================================================================

Guarantees:

* Evaluations survive the death of the process, however sudden, once `Ledger.append` has returned.
* A power cut or a crash of the system costs at most the evaluations since the last flush, whose time in the model is
  less than `FLUSH_SECONDS` together, and never the file, if the disk does what it reports.
* A value that is read is the value that was written. A row that does not match its checksum is left out with a
  `LedgerWarning` and evaluated again. Any other damage raises `LedgerDamaged`; `salvage` copies the rows that are whole
  to a new file.
* One process writes. Any number may read meanwhile, without delaying it.
* Nothing in a ledger is ever executed, and no array is made before its size was checked.
"""

from leapwise.storage.file import FORMAT_VERSION, Header, LedgerWarning
from leapwise.storage.ledger import FLUSH_SECONDS, Ledger, Tally, salvage
from leapwise.storage.rows import Failure, Row

__all__ = [
    "FLUSH_SECONDS",
    "FORMAT_VERSION",
    "Failure",
    "Header",
    "Ledger",
    "LedgerWarning",
    "Row",
    "Tally",
    "salvage",
]
