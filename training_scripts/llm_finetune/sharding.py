"""FSDP2 through accelerate on CPUs."""

from __future__ import annotations

from functools import wraps
from typing import Any

from accelerate import state
from accelerate.utils import DistributedType


def shard_on_cpus() -> None:
    """Make accelerate take its options for FSDP on CPUs, where it ignores them and trains whole copies."""
    made = state.AcceleratorState.__init__

    @wraps(made)
    def patched(self: Any, *arguments: Any, fsdp_plugin: Any = None, **options: Any) -> None:
        made(self, *arguments, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is None or self.distributed_type != DistributedType.MULTI_CPU:
            return
        if self._mixed_precision != "no":
            fsdp_plugin.set_mixed_precision(self._mixed_precision)
        shared = state.AcceleratorState._shared_state
        shared["distributed_type"], shared["fsdp_plugin"] = DistributedType.FSDP, fsdp_plugin
        state.PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    state.AcceleratorState.__init__ = patched
