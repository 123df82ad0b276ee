"""Counts the bytes of all tensors on the rank's device, by kind, and keeps the peak."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

PARAMETERS = "parameters"
GRADIENTS = "gradients"
OPTIMIZER = "optimizer"
ACTIVATIONS = "activations"
COMMUNICATION = "communication"
TEMPORARIES = "temporaries"
HOST = "host"
"""Of tensors in the memory of the host, which are not counted."""
KINDS = (PARAMETERS, GRADIENTS, OPTIMIZER, ACTIVATIONS, COMMUNICATION, TEMPORARIES)


class Ledger:
    """The storages that are alive. Tensors of one storage count once.

    Attributes:
        now: the bytes by kind.
        total: the bytes of all kinds.
        peak: the largest `total` so far.
        at_peak: `now` at the peak.
        place: where the script was at the peak, as `where` returned it.
        peaks: the largest `total` at each place, with the bytes by kind.
        turn: held by the thread whose operation is being counted. Scripts read batches ahead in
            others.
    """

    def __init__(self, block: int, where: Callable[[], str]) -> None:
        """`block`: sizes are rounded up to a multiple of it, as the device's allocator does."""
        self.now = dict.fromkeys((*KINDS, HOST), 0)
        self.total = 0
        self.peak = 0
        self.at_peak = dict(self.now)
        self.place = ""
        self.peaks: dict[str, tuple[int, dict[str, int]]] = {}
        self.turn = threading.RLock()
        self._block = block
        self._where = where
        self._held: dict[int, tuple[int, str, Any]] = {}

    def add(self, tensor: Any, kind: str) -> None:
        """Count the storage of a tensor, unless it is counted already."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._held:
            self._hold(storage, storage.nbytes(), kind)

    def classify(self, tensor: Any, kind: str) -> None:
        """Count the storage of a tensor as of this kind from now on."""
        storage = tensor.untyped_storage()
        self.drop(storage._cdata)
        self._hold(storage, storage.nbytes(), kind)

    def resize(self, storage: Any, size: int) -> None:
        """Count a storage that is about to get this size. FSDP2 empties and fills storages so."""
        held = self._held.get(storage._cdata)
        kind = COMMUNICATION if held is None else held[1]
        self.drop(storage._cdata)
        self._hold(storage, size, kind)

    def drop(self, key: int) -> None:
        """Count a storage no longer. `key` is its address."""
        with self.turn:
            held = self._held.pop(key, None)
            if held is not None:
                size, kind, _ = held
                self.now[kind] -= size
                if kind != HOST:
                    self.total -= size

    def kind_of(self, tensor: Any) -> str | None:
        """Return what a tensor is counted as; None if it is not counted."""
        held = self._held.get(tensor.untyped_storage()._cdata)
        return None if held is None else held[1]

    def _hold(self, storage: Any, size: int, kind: str) -> None:
        key = storage._cdata
        size = -(-size // self._block) * self._block
        self._held[key] = (size, kind, weakref.ref(storage, lambda _: self.drop(key)))
        self.now[kind] += size
        if kind == HOST:
            return
        self.total += size
        # of equal peaks the last one, in which the kinds of all storages are known
        place = self._where()
        before = self.peaks.get(place)
        if before is None or self.total >= before[0]:
            self.peaks[place] = (self.total, dict(self.now))
        if self.total >= self.peak:
            self.place = place
            self.peak, self.at_peak = self.peaks[place]
