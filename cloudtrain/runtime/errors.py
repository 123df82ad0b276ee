"""The only error class of the runtime. It is not in `cloudtrain.errors`, which the bundle does not contain."""

from __future__ import annotations

import sys


class SetupError(Exception):
    """The process cannot train with its environment, arguments or data. `hint` tells the user what to type or set.
    `on_every_rank` is False for an error that one process may meet alone, which that process then reports itself.
    """

    def __init__(self, message: str, *, hint: str | None = None, on_every_rank: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.on_every_rank = on_every_rank

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def tell(self) -> None:
        """Write message and hint to stderr."""
        sys.stderr.write(f"error: {self.message}\n" + (f"\nhint: {self.hint}\n" if self.hint else ""))
