"""What stands in place of GPUs, other ranks, checkpoints and compilers while a script is probed."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader

from .ledger import COMMUNICATION, GRADIENTS, PARAMETERS
from .tensors import Exchange, Refusal, Tensors, guess


def stand_in(tensors: Tensors, mail: Path) -> None:
    """Replace parts of torch, before the script imports them. `mail` is the folder in which ranks
    exchange objects."""
    _parameters(tensors)
    _values()
    _files()
    _compiler()
    _loaders()
    _processes(_Mail(mail))
    _calls()
    _threads(tensors)
    _data_parallel(tensors)


def replace(owner: Any, **members: Any) -> None:
    """Put other members in place of those of a module or class."""
    for name, member in members.items():
        setattr(owner, name, member)


def nothing(*_: object, **__: object) -> None:
    """Stand in place of a function without a result."""


def _first(value: object, *_: object, **__: object) -> object:
    """Stand in place of a function that changes its first argument."""
    return value


# Parameters, which have no memory, and values that only a real run has.


def _parameters(tensors: Tensors) -> None:
    make = nn.Parameter.__new__

    def new(cls: type, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is torch.Tensor and not data.is_meta:
            data = tensors.fake(data)
        parameter: Any = make(cls, data, requires_grad)
        if isinstance(data, FakeTensor) and tensors.is_on_device(data):
            tensors.ledger.classify(parameter, PARAMETERS)
        return parameter

    def copied(self: Any, memo: dict[int, object]) -> Any:
        copy = self.detach().clone()
        if getattr(self, "_is_param", False):
            copy = nn.Parameter(copy, self.requires_grad)
        else:
            copy.requires_grad_(self.requires_grad and self.is_leaf)
        memo[id(self)] = copy
        return copy

    nn.Parameter.__new__ = staticmethod(new)  # type: ignore[method-assign, assignment]
    FakeTensor.__deepcopy__ = copied  # type: ignore[method-assign]

    swap = torch.utils.swap_tensors

    def swapped(one: Any, other: Any) -> None:
        # its weak references keep a module from changing the device of its parameters
        tensors.fakes.fake_tensor_converter.meta_converter.tensor_memo.clear()
        swap(one, other)

    replace(torch.utils, swap_tensors=swapped)
    resize = torch.UntypedStorage.resize_

    def resized(self: Any, size: int) -> Any:
        tensors.ledger.resize(self, size)
        return resize(self, size)

    torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign, assignment]


def _values() -> None:
    item = torch.Tensor.item
    numpy = torch.Tensor.numpy

    def item_of(self: Any) -> Any:
        value = item(self)
        return guess(value) if isinstance(self, FakeTensor) and self.constant is None else value

    def numpy_of(self: Any, *arguments: object, **options: object) -> Any:
        if isinstance(self, FakeTensor):
            return numpy(torch.zeros(self.shape, dtype=self.dtype))
        return numpy(self, *arguments, **options)

    def tolist_of(self: Any) -> Any:
        if not self.dim():
            return item_of(self)
        return [tolist_of(part) for part in self.unbind()]

    def format_of(self: Any, words: str) -> str:
        return format(object.__str__(self) if self.dim() else item_of(self), words)

    is_finite = torch.isfinite

    def finite(tensor: Any) -> Any:
        # losses are: a script that stops for others goes on
        if isinstance(tensor, FakeTensor) and not tensor.dim():
            return torch.ones((), dtype=torch.bool)
        return is_finite(tensor)

    replace(torch, isfinite=finite)
    FakeTensor.__format__ = format_of  # type: ignore[method-assign]
    tolist = torch.Tensor.tolist
    replace(
        torch.Tensor,
        item=item_of,
        numpy=numpy_of,
        tolist=lambda self: tolist_of(self) if isinstance(self, FakeTensor) else tolist(self),
        isfinite=finite,
        pin_memory=_first,
        record_stream=nothing,
    )


def _threads(tensors: Tensors) -> None:
    """Let the threads of the script, such as those that read batches ahead, have such tensors."""
    run = threading.Thread.run

    def run_with(self: Any) -> None:
        with tensors:
            run(self)

    threading.Thread.run = run_with  # type: ignore[method-assign]
    torch.autograd.set_multithreading_enabled(False)


# Files, compilers and loaders.


def _files() -> None:
    def save(_object: object, file: object, *_: object, **__: object) -> None:
        if isinstance(file, str | os.PathLike):
            with open(file, "wb"):
                pass

    address = torch.UntypedStorage.data_ptr

    def address_of(self: torch.UntypedStorage) -> int:
        # safetensors takes tensors without memory for parts of one, if they have one address
        return self._cdata if self.device.type == "meta" else address(self)

    torch.UntypedStorage.data_ptr = address_of  # type: ignore[method-assign]
    with contextlib.suppress(ImportError):
        safetensors = importlib.import_module("safetensors.torch")
        save_file = safetensors.save_file

        def save_weights(
            weights: dict[str, torch.Tensor], file: str, metadata: object = None
        ) -> None:
            # a small model is read again by some scripts
            if sum(weight.nbytes for weight in weights.values()) > _MOST_SAVED:
                save(weights, file)
                return
            zeros = {
                name: torch.zeros(weight.shape, dtype=weight.dtype)
                for name, weight in weights.items()
            }
            save_file(zeros, file, metadata)

        replace(safetensors, save_file=save_weights)
    load = torch.load

    def load_here(*arguments: object, **options: object) -> Any:
        return load(*arguments, **{**options, "map_location": "cpu"})

    replace(torch, save=save, load=load_here)
    with contextlib.suppress(ImportError):
        import torch.distributed.checkpoint as checkpoint

        ended: Future[None] = Future()
        ended.set_result(None)
        replace(checkpoint, save=nothing, async_save=lambda *_, **__: ended)


_MOST_SAVED = 2**28
"""Bytes of a model up to which its weights are written, as zeros."""


def _compiler() -> None:
    def compile(model: Any = None, **_: object) -> Any:
        return _first if model is None else model

    replace(torch, compile=compile)
    replace(nn.Module, compile=nothing)


def _loaders() -> None:
    make = DataLoader.__init__

    def init(self: Any, dataset: Any, *arguments: object, **options: object) -> None:
        for name in ("num_workers", "prefetch_factor", "persistent_workers", "pin_memory"):
            options.pop(name, None)
        options.pop("multiprocessing_context", None)
        make(self, dataset, *arguments, **options)

    DataLoader.__init__ = init  # type: ignore[method-assign]


# Other ranks.


class _Store(dist.HashStore):  # type: ignore[name-defined]
    """A store in which all ranks have met. What only another rank would have written is empty."""

    def check(self, _keys: list[str]) -> bool:
        return True

    def wait(self, *_: object) -> None:
        """Return at once."""

    def get(self, key: str) -> bytes:
        return super().get(key) if super().check([key]) else b""

    def set_timeout(self, _timeout: timedelta) -> None:
        """Nothing waits."""


class _Mail:
    """Objects that ranks of a pipeline send to each other, as files in the folder `mail`. A rank
    that is waited for is named in the folder, so that it is started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parent = os.getppid()
        self._sent: Counter[str] = Counter()
        self._received: Counter[str] = Counter()

    def send(self, objects: list[object], dst: int | None = None, *_: object, **__: object) -> None:
        """Write the objects for the rank `dst`."""
        self._write(objects, f"{dist.get_rank()}-{dst or 0}")

    def receive(
        self, objects: list[object], src: int | None = None, *_: object, **__: object
    ) -> None:
        """Wait for the objects of the rank `src`."""
        self._read(objects, src or 0, f"{src or 0}-{dist.get_rank()}")

    def broadcast(
        self, objects: list[object], src: int | None = None, *_: object, **__: object
    ) -> None:
        """Write the objects for all ranks that run, or wait for those of the rank `src`."""
        pair = f"{src or 0}-all"
        if dist.get_rank() == (src or 0):
            self._write(objects, pair)
        else:
            self._read(objects, src or 0, pair)

    def _write(self, objects: list[object], pair: str) -> None:
        file = self._file(pair, self._sent)
        aside = file.with_suffix(".writing")
        aside.write_bytes(pickle.dumps(objects))
        aside.replace(file)

    def _read(self, objects: list[object], rank: int, pair: str) -> None:
        file = self._file(pair, self._received)
        (self._folder / f"wanted-{rank}").touch()
        while not file.exists():
            if os.getppid() != self._parent:
                os._exit(1)  # nobody is left who would start the other rank
            time.sleep(0.05)
        objects[:] = pickle.loads(file.read_bytes())

    def _file(self, pair: str, counts: Counter[str]) -> Path:
        counts[pair] += 1
        return self._folder / f"{pair}-{counts[pair]}"


def _processes(mail: _Mail) -> None:
    begin = dist.init_process_group
    new_group = dist.new_group
    backends: list[str] = []

    def init(backend: str | None = None, *_: object, **__: object) -> None:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        backends.append(backend or "nccl")
        rank = int(os.environ.get("RANK", "0"))
        world = int(os.environ.get("WORLD_SIZE", "1"))
        begin("fake", rank=rank, world_size=world, store=FakeStore())

    def group(ranks: object = None, *_: object, **options: object) -> Any:
        names = ("use_local_synchronization", "group_desc")
        kept = {name: options[name] for name in names if name in options}
        return new_group(ranks, **kept)

    def backend_of(_group: object = None) -> str:
        return backends[0].rpartition(":")[2] if backends else "nccl"

    def gather_objects(objects: list[object], value: object, *_: object, **__: object) -> None:
        objects[:] = [value] * len(objects)

    def gather_to_one(
        value: object, objects: list[object] | None = None, *_: object, **__: object
    ) -> None:
        if objects:
            objects[:] = [value] * len(objects)

    def scatter_objects(
        mine: list[object], objects: list[object] | None, *_: object, **__: object
    ) -> None:
        if objects:
            mine[0] = objects[dist.get_rank()]

    replace(
        dist,
        init_process_group=init,
        new_group=group,
        get_backend=backend_of,
        all_gather_object=gather_objects,
        gather_object=gather_to_one,
        broadcast_object_list=mail.broadcast,
        scatter_object_list=scatter_objects,
        send_object_list=mail.send,
        recv_object_list=mail.receive,
        barrier=nothing,
        monitored_barrier=nothing,
        is_nccl_available=lambda: True,
        TCPStore=lambda *_, **__: _Store(),
        PrefixStore=lambda _prefix, store: store,
    )


def _calls() -> None:
    """Refuse to wait for ranks that call each other."""

    def refuse(*_: object, **__: object) -> None:
        raise Refusal("its ranks call each other by `torch.distributed.rpc`, and one runs alone")

    if dist.rpc.is_available():
        replace(dist.rpc, init_rpc=refuse)


def _data_parallel(tensors: Tensors) -> None:
    """Put a module without the reducer, which needs memory, in place of torch's."""

    class DistributedDataParallel(nn.Module):
        """Has the buckets of torch's, and counts what it sends."""

        def __init__(
            self,
            module: nn.Module,
            device_ids: object = None,
            *_: object,
            bucket_cap_mb: float | None = None,
            gradient_as_bucket_view: bool = False,
            **__: object,
        ) -> None:
            super().__init__()
            self.module = module
            self.device_ids = device_ids
            self.require_backward_grad_sync = True
            self.is_view = gradient_as_bucket_view
            self.buckets: list[Any] = []
            size = int((25 if bucket_cap_mb is None else bucket_cap_mb) * 2**20)
            bucket: list[Any] = []
            learned = [p for p in module.parameters() if p.requires_grad]
            for parameter in reversed(learned):
                bucket.append(parameter)
                if sum(p.numel() * p.element_size() for p in bucket) >= size:
                    self._add(bucket)
                    bucket = []
            if bucket:
                self._add(bucket)

        def _add(self, parameters: list[Any]) -> None:
            count = sum(parameter.numel() for parameter in parameters)
            flat = parameters[0].detach().new_empty(count)
            kind = GRADIENTS if self.is_view else COMMUNICATION
            tensors.ledger.classify(flat, kind)
            self.buckets.append(flat)
            views = flat.split([parameter.numel() for parameter in parameters])
            for parameter, view in zip(parameters, views, strict=True):
                parameter.register_post_accumulate_grad_hook(self._reducing(view))

        def _reducing(self, view: Any) -> Callable[[Any], None]:
            def reduce(parameter: Any) -> None:
                if not self.require_backward_grad_sync:
                    return  # the sum so far stays beside the bucket
                if self.is_view:
                    parameter.grad = view.view_as(parameter)
                if dist.get_world_size() > 1:
                    world = dist.get_world_size()
                    size = view.numel() * view.element_size()
                    instances = -(-world // tensors.local_world)
                    tensors.exchanges[Exchange("allreduce_", size, world, instances)] += 1

            return reduce

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            before = self.require_backward_grad_sync
            self.require_backward_grad_sync = False
            try:
                yield
            finally:
                self.require_backward_grad_sync = before

        @contextlib.contextmanager
        def join(self, *_: object, **__: object) -> Iterator[None]:
            yield

        def register_comm_hook(self, *_: object) -> None:
            """Send what is sent without it."""

        def forward(self, *arguments: object, **options: object) -> Any:
            return self.module(*arguments, **options)

    replace(nn.parallel, DistributedDataParallel=DistributedDataParallel)
    replace(nn.parallel.distributed, DistributedDataParallel=DistributedDataParallel)
