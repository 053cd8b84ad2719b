"""What SQLite does not say: how much of a damaged log it has left out.

SQLite reads its write-ahead log up to the first frame that does not match its checksum, and forgets what follows. Of a
killed process that is the one transaction it was writing; of a damaged log it can be many that were finished.
"""

from __future__ import annotations

import os
import struct

from leapwise.storage.pages import PAGE_SIZE

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_STEP = _FRAME.size + PAGE_SIZE


def commits_after(path: str, n_frames: int) -> int:
    """Return how many transactions were begun to be written to a log after its first `n_frames` frames."""
    n_commits = 0
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER.size)
            # Frames that are left from an earlier use of the file have other salts than those of now.
            salts = list(_HEADER.unpack(header)[4:6]) if _is_whole(header) else None
            for number in range((os.fstat(file.fileno()).st_size - _HEADER.size) // _STEP):
                file.seek(_HEADER.size + number * _STEP)
                _, commit, *own, _, _ = _FRAME.unpack(file.read(_FRAME.size))
                salts = salts or own
                n_commits += number >= n_frames and commit > 0 and own == salts
    except (OSError, struct.error):
        return 0
    return n_commits


def _is_whole(header: bytes) -> bool:
    """Return whether the header of a log matches its checksum."""
    words = struct.unpack(">6I" if header[3:4] == b"\x83" else "<6I", header[:24])
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return (first, second) == struct.unpack(">2I", header[24:])
