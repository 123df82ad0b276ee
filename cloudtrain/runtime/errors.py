"""The one error of the runtime. It stands apart from `cloudtrain.errors`, which is not in the bundle."""

from __future__ import annotations

import sys


class SetupError(Exception):
    """The process cannot train as it was started or asked. `hint` says what to type or to set."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}\nhint: {self.hint}"

    def tell(self) -> None:
        """Write it to stderr for a person."""
        sys.stderr.write(f"error: {self.message}\n" + (f"\nhint: {self.hint}\n" if self.hint else ""))
