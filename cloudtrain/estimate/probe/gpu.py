"""A GPU that is not there: torch says that there is one, and tensors on it are fake.

torch may be built without CUDA. So it computes the shapes of a CPU's operations, and where those of
a GPU need other memory (autocast, attention, dropout), the other operation replaces it.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.optim.optimizer import _foreach_supported_types as _of_optimizers
from torch.utils import _device, _foreach_utils

from .ledger import ACTIVATIONS, HOST
from .standins import nothing, replace
from .tensors import Tensors


class VisibleGpu(NamedTuple):
    """The GPU that the script sees. `capability` is the first number of the compute capability."""

    name: str
    memory: int
    capability: int
    count: int


def stand_in_for(gpu: VisibleGpu, tensors: Tensors) -> None:
    """Let the script see such GPUs."""
    index = int(os.environ.get("LOCAL_RANK", "0")) % gpu.count
    device = torch.device("cuda", index)
    _module(gpu, device, tensors)
    _devices(device, tensors)
    _makers(tensors)
    _autocast()
    _kernels(tensors)
    # optimizers and norms update all parameters at once, as on GPUs
    for kinds in (_of_optimizers, _foreach_utils._foreach_supported_types):
        kinds.append(FakeTensor)


class _Queue:
    """A stream or an event: whatever is asked of it has happened."""

    cuda_stream = 0
    stream_id = 0

    def __init__(self, *_: object, **__: object) -> None:
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> _Queue:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def elapsed_time(self, _other: object) -> float:
        return 1.0

    def record_event(self, event: object = None) -> object:
        return event or _Queue()

    wait_event = wait_stream = synchronize = record = wait = nothing


_SILENT = (
    "_lazy_init", "init", "set_device", "synchronize", "empty_cache", "ipc_collect", "seed",
    "seed_all", "manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all",
    "reset_peak_memory_stats", "reset_max_memory_allocated", "set_per_process_memory_fraction",
)  # fmt: skip
"""Functions that do nothing here."""


def _module(gpu: VisibleGpu, device: torch.device, tensors: Tensors) -> None:
    """Let `torch.cuda` and `torch.accelerator` report the GPUs."""
    ledger = tensors.ledger
    properties = SimpleNamespace(
        name=gpu.name,
        total_memory=gpu.memory,
        major=gpu.capability,
        minor=0,
        multi_processor_count=100,
        warp_size=32,
        uuid="",
    )
    answers: dict[str, Any] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": gpu.count,
        "current_device": device.index,
        "get_device_name": gpu.name,
        "get_device_properties": properties,
        "get_device_capability": (gpu.capability, 0),
        "is_bf16_supported": gpu.capability >= 8,
        "is_current_stream_capturing": False,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "get_rng_state_all": [],
        "initial_seed": 0,
        "memory_summary": "",
        "utilization": 0,
        **dict.fromkeys(_SILENT),
    }
    for name, answer in answers.items():
        for owner in (torch.cuda, torch.cuda.random):
            setattr(owner, name, lambda *_, answer=answer, **__: answer)
    for name in ("Stream", "ExternalStream", "Event", "stream", "device", "device_of"):
        setattr(torch.cuda, name, _Queue)
    replace(
        torch.cuda,
        current_stream=_Queue,
        default_stream=_Queue,
        memory_allocated=lambda *_: ledger.total,
        memory_reserved=lambda *_: ledger.total,
        max_memory_allocated=lambda *_: ledger.peak,
        max_memory_reserved=lambda *_: ledger.peak,
        memory_stats=lambda *_: defaultdict(int),
        mem_get_info=lambda *_: (gpu.memory - ledger.total, gpu.memory),
    )
    replace(
        torch._C,
        _get_accelerator=lambda *_: torch.device("cuda"),
        _cuda_getCurrentRawStream=lambda *_: 0,
    )
    replace(
        torch.accelerator,
        current_accelerator=lambda *_, **__: torch.device("cuda"),
        current_device_index=lambda: device.index,
        current_device_idx=lambda: device.index,
        current_stream=_Queue,
        device_count=lambda: gpu.count,
        is_available=lambda: True,
        set_device_index=nothing,
        set_device_idx=nothing,
        set_stream=nothing,
        synchronize=nothing,
    )


def _is_gpu(device: Any) -> bool:
    """Return whether a device that the script names is the GPU."""
    if device is None:
        return False
    return isinstance(device, int) or torch.device(device).type == "cuda"


def _devices(device: torch.device, tensors: Tensors) -> None:
    """Let tensors say on which device they are, and move between them."""
    convert = torch.Tensor.to

    def device_of(self: Any) -> torch.device:
        with tensors.ledger.turn:
            if self.fake_mode.in_kernel_invocation:
                return torch.device("meta")
            is_seen = tensors.depth == 0 and tensors.is_on_device(self)
            return device if is_seen else torch.device("cpu")

    def move(tensor: Any, target: Any) -> Any:
        if hasattr(tensor, "_spec"):  # a DTensor, whose local part moves
            return convert(tensor, "cpu")
        if _is_gpu(target):
            if tensor.is_meta or tensors.is_on_device(tensor):
                return tensor
            if not isinstance(tensor, FakeTensor):
                return tensors.like(tensor, ACTIVATIONS)
            with tensors.making(ACTIVATIONS):
                return tensor.clone()
        is_leaving = isinstance(tensor, FakeTensor) and tensors.is_on_device(tensor)
        if is_leaving and torch.device(target).type == "cpu":
            with tensors.making(HOST):
                return tensor.clone()
        return tensor

    def to(self: Any, *arguments: object, **options: object) -> Any:
        options.pop("copy", None)
        first = arguments[0] if arguments else None
        if isinstance(first, int) and not isinstance(first, bool):
            arguments = (torch.device("cuda", first), *arguments[1:])
        elif isinstance(first, torch.Tensor):
            arguments = (first.device, first.dtype, *arguments[1:])
        target, dtype, _, layout = torch._C._nn._parse_to(*arguments, **options)
        moved = self if target is None else move(self, target)
        if target is not None and target.type == "meta":
            moved = convert(moved, target)
        if layout is not None:
            return convert(moved, dtype or moved.dtype, memory_format=layout)
        return moved if dtype is None else convert(moved, dtype)

    FakeTensor.device = property(device_of)  # type: ignore[assignment, misc]
    is_cuda = property(lambda self: device_of(self).type == "cuda")
    FakeTensor.is_cuda = is_cuda
    replace(
        torch.Tensor,
        to=to,
        cuda=lambda self, *_, **__: move(self, "cuda"),
        cpu=lambda self, **_: move(self, "cpu"),
        get_device=lambda self: device.index if self.is_cuda else -1,
    )
    seed = torch.Generator

    class Generator(seed):  # type: ignore[misc, valid-type]
        """A generator of random numbers for a device, which is here the CPU."""

        def __new__(cls, device: Any = "cpu") -> Any:  # noqa: ARG004
            return super().__new__(cls, "cpu")

    replace(torch, Generator=Generator)


_MADE = (
    "empty", "zeros", "ones", "full", "rand", "randn", "randint", "arange", "eye", "linspace",
    "logspace", "randperm", "empty_strided", "normal", "empty_like", "zeros_like", "ones_like",
    "full_like", "rand_like", "randn_like", "randint_like",
)  # fmt: skip
_COPIED = ("tensor", "as_tensor", "asarray", "scalar_tensor")
_OF_TENSORS = ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor")


def _makers(tensors: Tensors) -> None:
    """Let functions make tensors on the GPU."""
    made: dict[Any, Callable[..., Any]] = {}
    constructors = _device._device_constructors()

    def making(function: Any) -> Any:
        def make(*arguments: object, device: Any = None, **options: object) -> Any:
            if not _is_gpu(device):
                if device is not None:
                    options["device"] = device
                return function(*arguments, **options)
            options.pop("pin_memory", None)
            options.pop("generator", None)
            with tensors.making(ACTIVATIONS):
                return function(*arguments, device="cpu", **options)

        made[function] = make
        return make

    def copying(function: Any) -> Any:
        def copy(*arguments: object, device: Any = None, **options: object) -> Any:
            tensor = function(*arguments, **options)
            return tensor if device is None else tensor.to(device)

        made[function] = copy
        return copy

    for name in _MADE:
        setattr(torch, name, making(getattr(torch, name)))
    for name in _COPIED:
        setattr(torch, name, copying(getattr(torch, name)))
    for name in _OF_TENSORS:
        setattr(torch.Tensor, name, making(getattr(torch.Tensor, name)))

    def on_default(self: Any, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in constructors and kwargs.get("device") is None:
            kwargs["device"] = self.device
        return made.get(func, func)(*args, **kwargs)

    replace(_device.DeviceContext, __torch_function__=on_default)


_IN_FP32 = (
    "layer_norm", "group_norm", "softmax", "log_softmax", "softmin", "cross_entropy", "nll_loss",
    "mse_loss", "l1_loss", "smooth_l1_loss", "kl_div", "cosine_similarity", "cosine_embedding_loss",
    "binary_cross_entropy_with_logits", "exp", "log", "log2", "log1p", "pow", "rsqrt", "sum",
    "prod", "cumsum", "cumprod", "norm", "normalize", "logsumexp", "softplus", "huber_loss",
)  # fmt: skip
"""Functions that autocast computes in fp32 on GPUs, and not on CPUs."""


def _autocast() -> None:
    """Let autocast for GPUs change the precision of the same functions as there."""
    begin = torch.autocast.__init__
    is_enabled = torch.is_autocast_enabled
    dtype_of = torch.get_autocast_dtype

    def init(
        self: Any, device_type: str, dtype: Any = None, *rest: object, **options: object
    ) -> None:
        if device_type == "cuda" and dtype is None:
            dtype = torch.float16
        begin(self, "cpu", dtype, *rest, **options)

    replace(torch.autocast, __init__=init)
    replace(
        torch,
        is_autocast_enabled=lambda *_: is_enabled("cpu"),
        get_autocast_dtype=lambda *_: dtype_of("cpu"),
        get_autocast_gpu_dtype=lambda: dtype_of("cpu"),
    )

    def in_fp32(function: Any) -> Any:
        def compute(*arguments: object, **options: object) -> Any:
            if not is_enabled("cpu") or not arguments:
                return function(*arguments, **options)
            return function(*map(_widened, arguments), **options)

        return compute

    for owner in (functional, torch, torch.Tensor):
        for name in _IN_FP32:
            if hasattr(owner, name):
                setattr(owner, name, in_fp32(getattr(owner, name)))


def _widened(value: Any) -> Any:
    """Return a 16-bit tensor in fp32, and anything else as it is."""
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.float()
    return value


def _kernels(tensors: Tensors) -> None:
    """Let attention and dropout keep for the backward pass what they keep on GPUs."""
    attend = functional.scaled_dot_product_attention
    drop = functional.dropout

    def attention(query: Any, key: Any, value: Any, *arguments: object, **options: object) -> Any:
        # a GPU's kernel draws again what it dropped; the CPU's has no dropout, and another kernel
        # would stand in for it
        if "dropout_p" in options:
            options["dropout_p"] = 0.0
        if len(arguments) > 1:
            arguments = (arguments[0], 0.0, *arguments[2:])
        return attend(query, key, value, *arguments, **options)

    def dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> torch.Tensor:
        if not training or not p or not tensors.is_on_device(input):
            return drop(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    def flexible(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *_: object,
        **options: object,
    ) -> torch.Tensor:
        # compiled, it keeps what the other kernel keeps
        kept = {name: options[name] for name in ("scale", "enable_gqa") if name in options}
        return attend(query, key, value, **kept)

    replace(functional, scaled_dot_product_attention=attention, dropout=dropout)
    with contextlib.suppress(ImportError):
        from torch.nn.attention import flex_attention

        replace(flex_attention, flex_attention=flexible)
