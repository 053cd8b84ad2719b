"""Threads of linear algebra: one for the sampler's own small products, as many as there were for the model.

A surrogate's products have a few rows. Divided among the threads of BLAS they take up to five times as long, most of it
waiting; and how they are divided decides how they round. The model's own products may be large, so that each call of
it has its threads back.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from threadpoolctl import ThreadpoolController


class BlasThreads:
    """While this context lasts, linear algebra in this process has one thread, but in `widen` ... `narrow`.

    Examples
    --------
    >>> with BlasThreads() as threads:
    ...     threads.widen()
    ...     threads.narrow()
    """

    def __init__(self) -> None:
        found = ThreadpoolController().select(user_api="blas").lib_controllers
        self._libraries = [(each, each.num_threads) for each in found if each.num_threads > 1]

    @property
    def matter(self) -> bool:
        """Whether there is more than one thread to speak of."""
        return bool(self._libraries)

    def widen(self) -> None:
        """Give linear algebra the threads that it had."""
        for library, n in self._libraries:
            library.set_num_threads(n)

    def narrow(self) -> None:
        """Leave it one thread."""
        for library, _ in self._libraries:
            library.set_num_threads(1)

    def __enter__(self) -> Self:
        self.narrow()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.widen()
