"""Run the training loops of other libraries with cloudtrain's metrics, progress, graceful stop,
checkpoints and resuming.

    from cloudtrain.runtime import integrations

    integrations.train(trainer)                 # Hugging Face, in place of trainer.train()
    integrations.fit(trainer, model, data)      # Lightning, in place of trainer.fit(model, data)

`train` adds `HuggingFaceCallback` to the trainer, `fit` adds `LightningCallback`. A script may also
add these callbacks itself. The libraries are imported on first use. `pass_to_hydra()` turns the
job's hyperparameters into Hydra's overrides.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing.TYPE_CHECKING, without importing typing
if TYPE_CHECKING:
    from .huggingface import HuggingFaceCallback as HuggingFaceCallback
    from .huggingface import train as train
    from .hydra import pass_to_hydra as pass_to_hydra
    from .lightning import LightningCallback as LightningCallback
    from .lightning import fit as fit

_HOME = {
    "HuggingFaceCallback": "huggingface",
    "train": "huggingface",
    "LightningCallback": "lightning",
    "fit": "lightning",
    "pass_to_hydra": "hydra",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
