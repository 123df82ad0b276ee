"""Choose the backend of the collectives: smddp, nccl, gloo or mpi. `auto` chooses the fastest one that works in this
process.
"""

from __future__ import annotations

from importlib import import_module

from .errors import SetupError
from .notices import notice

AUTO = "auto"

NCCL = "cpu:gloo,cuda:nccl"
"""nccl for GPU tensors, and gloo for the small CPU tensors beside them."""

SMDDP_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
"""The module that registers the backend `smddp` when it is imported. Only SageMaker's images have it."""


def choose_backend(asked: str, *, gpus: int, folded: bool, alone: bool, sends: bool = False) -> str:
    """Return the backend string for torch.distributed.

    Args:
        asked: `auto`, or the required backend.
        gpus: GPUs that this process sees.
        folded: whether two processes share a GPU.
        alone: whether the job has only one process.
        sends: whether the script sends tensors from process to process, which smddp does not support.

    Raises:
        SetupError: the requested backend cannot run here.
    """
    if asked != AUTO:
        problem = _problem(asked, gpus=gpus, folded=folded)
        if problem:
            raise SetupError(
                f"the backend `{asked}` cannot run here: {problem}",
                hint="use `auto`, which chooses a backend that can run",
            )
        return NCCL if asked == "nccl" else asked
    if gpus and not folded and not alone and not sends and _smddp_problem() is None:
        return "smddp"
    return "gloo" if _problem("nccl", gpus=gpus, folded=folded) else NCCL


def _problem(backend: str, *, gpus: int, folded: bool) -> str | None:
    """Return the reason why `backend` cannot run in this process, which sees `gpus` GPUs; None if it can. `folded`
    means that two processes share a GPU.
    """
    import torch.distributed as dist

    if "nccl" in backend or backend == "smddp":
        if not gpus:
            return "this process sees no GPU"
        if folded:
            return "several processes share one GPU"
    if "nccl" in backend and not dist.is_nccl_available():
        return "this PyTorch is built without nccl"
    if backend == "smddp":
        return _smddp_problem()
    if backend == "mpi" and not dist.is_mpi_available():
        return "this PyTorch is built without mpi"
    known = {"gloo", "nccl", "mpi", "smddp", "ucc", "fake"}
    parts = {part.rpartition(":")[2] for part in backend.split(",")}
    unknown = sorted(parts - known)
    return f"`{unknown[0]}` is not a backend; there are `auto`, `smddp`, `nccl`, `gloo` and `mpi`" if unknown else None


def _smddp_problem() -> str | None:
    try:
        import_module(SMDDP_MODULE)
    except ModuleNotFoundError:
        return "`smdistributed.dataparallel` is not installed; only SageMaker's images for PyTorch up to 2.5 have it"
    except (ImportError, OSError, RuntimeError) as error:  # installed, but not for this instance type or driver
        notice(f"smddp is installed but does not load: {error}")
        return f"its library does not load: {error}"
    return None
