"""FSDP2 through accelerate, on CPUs too, and the certainty that it is there."""

from __future__ import annotations

from functools import wraps
from typing import Any

from accelerate import state
from accelerate.utils import DistributedType
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback

from cloudtrain import runtime


def shard_on_cpus() -> None:
    """Make accelerate take its options for FSDP on CPUs. By default it trains copies of the model there, without a word."""
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


class FullyShard(TrainerCallback):
    """Stops a training whose model is not sharded although that was asked for."""

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Check the class of the model and that its layers are shares."""
        layers = [module for module in model.modules() if isinstance(module, FSDPModule)]
        if not isinstance(model, FSDPModule) or len(layers) < 2:
            raise runtime.SetupError(
                f"the model is a `{type(model).__name__}`, which is not sharded", hint="use `--layout ddp`"
            )
