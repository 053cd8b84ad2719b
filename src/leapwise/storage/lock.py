"""One writer: a lock that the operating system lets go of when its holder dies, however it dies.

POSIX record locks belong to a process and are not inherited: worker processes forked during a run do not keep a
ledger locked after the run was killed. They say nothing within one process, hence the table of those held here.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress

from leapwise.errors import LedgerBusy, LedgerError

_held: dict[str, int] = {}
_guard = threading.Lock()


class FileLock:
    """Hold ``<path>.lock`` from construction to `release`; raise `LedgerBusy` if somebody else does.

    Parameters
    ----------
    path : str
        Of the file that is protected, with symbolic links resolved.
    """

    def __init__(self, path: str) -> None:
        self._name = path + ".lock"
        with _guard:
            if _held.get(self._name) == os.getpid():
                raise LedgerBusy(
                    f"the ledger {path} is being written by another run in this process; wait for it, or close it"
                )
            self._descriptor = self._acquire(path)
            _held[self._name] = self._pid = os.getpid()

    def release(self) -> None:
        """Let go; the lock file goes too. Does nothing in a forked child: the lock is its parent's."""
        with _guard:
            if self._pid != os.getpid() or _held.get(self._name) != self._pid:
                return
            del _held[self._name]
            # Unlinked while held: whoever has opened it meanwhile will find that it is no longer there.
            with suppress(OSError):
                os.unlink(self._name)
            os.close(self._descriptor)
            with suppress(OSError):
                if sys.platform == "win32":
                    os.unlink(self._name)

    def _acquire(self, path: str) -> int:
        while True:
            try:
                descriptor = os.open(self._name, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            except OSError as error:
                raise LedgerError(
                    f"the ledger {path} cannot be locked: {error.strerror} ({self._name}); "
                    "choose a folder that can be written"
                ) from error
            try:
                _lock(descriptor)
                if _is_same(descriptor, self._name):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
                    return descriptor
            except (BlockingIOError, PermissionError) as error:
                holder = os.pread(descriptor, 200, 0) if hasattr(os, "pread") else b""
                who = holder.decode("utf-8", "replace").strip() or "another process"
                os.close(descriptor)
                raise LedgerBusy(
                    f"the ledger {path} is being written by {who}; wait for it or stop it, or use another file"
                ) from error
            except OSError as error:
                os.close(descriptor)
                raise LedgerError(
                    f"the ledger {path} cannot be locked: {error.strerror}; "
                    "put it on a file system that has locks and room, such as a local disk"
                ) from error
            os.close(descriptor)


def _is_same(descriptor: int, name: str) -> bool:
    """Return whether an open file is still the one of that name."""
    try:
        there = os.stat(name, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), there)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        # Far beyond the text, which others may then read.
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
