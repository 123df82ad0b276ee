"""Tensors with a shape and no memory, and what the operations on them cost.

A tensor is fake if it is on the rank's GPU, if it is a parameter, or if it was computed from such a
tensor. All others are real: a script reads its data, shuffles indices and counts as in a real run.
To torch, all of them are on the CPU, because it may be built without CUDA.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from .ledger import ACTIVATIONS, COMMUNICATION, HOST, TEMPORARIES, Ledger

aten = torch.ops.aten

_PLAIN = {torch.Tensor, FakeTensor, torch.nn.Parameter}
_ASKS = (aten._local_scalar_dense.default, aten.item.default)
"""Operations that ask for a value. The second one is asked of tensors of the inference mode."""
_SELECTS = (aten.nonzero.default, aten.masked_select.default, aten.index.Tensor)
_COLLECTIVES = ("c10d", "_c10d_functional")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_HERE = os.path.dirname(__file__)
_TORCH = os.path.dirname(torch.__file__)
_DISTRIBUTED = os.path.join(_TORCH, "distributed")
_WRAPPERS = (
    _HERE,
    os.path.join(_TORCH, "_dynamo"),
    os.path.join(_TORCH, "_compile.py"),
    os.path.join(_TORCH, "utils", "_python_dispatch.py"),
)
_SCALERS = os.path.join(_TORCH, "amp")


class Refusal(Exception):
    """The script does what cannot be followed. `place` is `FILE:LINE` of the script."""

    def __init__(self, message: str, place: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.place = place


class _ShapesOnly(FakeTensorMode):
    """Fake tensors beside real ones. No device is touched, even if the script sees GPUs."""

    @property
    def avoid_device_init(self) -> bool:
        return True


class Operation(NamedTuple):
    """What one operation costs: floating-point operations, and bytes that it reads and writes."""

    func: Any
    dtype: torch.dtype
    flops: int
    bytes: int


class Exchange(NamedTuple):
    """What one collective moves: its `bytes` on this rank, among `ranks`, on `instances`."""

    name: str
    bytes: int
    ranks: int
    instances: int


class Decisions:
    """The lines of the script that decide by a value which only a real run has.

    Attributes:
        answer: how each of them decides in this run.
        places: the lines, as `FILE:LINE`.
        selections: the lines that select by such values, which select all here.
    """

    def __init__(self, folder: str, *, answer: bool) -> None:
        self.answer = answer
        self.places: dict[str, None] = {}
        self.selections: dict[str, None] = {}
        self._folder = folder

    def decide(self) -> bool:
        """Return the answer, and note the line of the script that asks."""
        self.places[self.place()] = None
        return self.answer

    def select(self) -> None:
        """Note the line of the script that selects."""
        self.selections[self.place()] = None

    def place(self) -> str:
        """Return the innermost line of the script that is being executed; empty outside of it."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self._folder):
                return f"{os.path.relpath(name, self._folder)}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


class _Guess:
    """A number in place of one that only a real run has. What is computed from it is one, too."""

    decisions: Decisions


def _guessing(kind: type[Any]) -> type[Any]:
    """Return the numbers of a kind that stand for unknown ones."""

    def computed(name: str) -> Any:
        operation = getattr(kind, name)

        def compute(self: Any, *others: Any) -> Any:
            value = operation(self, *others)
            return guess(value) if isinstance(value, int | float) else value

        return compute

    def compared(_self: object, _other: object) -> bool:
        return _Guess.decisions.decide()

    names = {"add", "sub", "mul", "truediv", "floordiv", "neg", "abs", "pow", "mod"}
    members = {}
    for name in sorted(names):
        for member in (f"__{name}__", f"__r{name}__"):
            if hasattr(kind, member):
                members[member] = computed(member)
    for name in ("lt", "le", "gt", "ge", "eq", "ne"):
        members[f"__{name}__"] = compared
    members["__hash__"] = kind.__hash__
    return type("Guess", (_Guess, kind), members)


_GuessedFloat = _guessing(float)
_GuessedInt = _guessing(int)


def guess(value: Any) -> Any:
    """Return a number that stands for an unknown one; a bool as it is."""
    if isinstance(value, bool | _Guess):
        return value
    return _GuessedFloat(value) if isinstance(value, float) else _GuessedInt(value)


def tensors_in(values: Any) -> Iterator[Any]:
    """Yield the tensors in the arguments or the result of an operation."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from tensors_in(value)


class Tensors(TorchDispatchMode):
    """Runs each operation of the script on fake or real tensors, and counts what it costs.

    Attributes:
        operations: how often each operation ran since the last `restart`.
        exchanges: the same of the collectives.
        phase: `optimizer` while an optimizer steps.
        moving: what tensors that are being made are for, on which device; None for what follows
            from the operation.
        depth: how many operations are being run, one in the other.
    """

    def __init__(
        self, has_gpu: bool, local_world: int, ledger: Ledger, decisions: Decisions
    ) -> None:
        super().__init__()
        self.fakes = _ShapesOnly(allow_non_fake_inputs=True)
        self.has_gpu = has_gpu
        self.moving: str | None = None
        self.depth = 0
        self.ledger = ledger
        self.operations: Counter[Operation] = Counter()
        self.exchanges: Counter[Exchange] = Counter()
        self.phase = ""
        self.local_world = local_world
        self._decisions = decisions

    def restart(self) -> None:
        """Count the operations from here on."""
        self.operations.clear()
        self.exchanges.clear()

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the same shape without memory. The other one is no longer counted."""
        self.ledger.drop(tensor.untyped_storage()._cdata)
        kind = HOST if self.has_gpu else ACTIVATIONS
        return self.like(tensor, kind)

    def like(self, tensor: torch.Tensor, kind: str) -> torch.Tensor:
        """Return a fake tensor of the same shape, which is counted as of this kind."""
        with self.making(kind):
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    def is_on_device(self, tensor: Any) -> bool:
        """Return whether a tensor is in the memory that is counted."""
        if not self.has_gpu:
            return not tensor.is_meta
        return isinstance(tensor, FakeTensor) and self.ledger.kind_of(tensor) != HOST

    @contextmanager
    def making(self, kind: str) -> Iterator[None]:
        """Make all new tensors fake in the block, and count them as of this kind."""
        with self.ledger.turn:
            before = self.moving
            self.moving = kind
            try:
                yield
            finally:
                self.moving = before

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        with self.ledger.turn:
            return self._run(func, types, args, kwargs or {})

    def _run(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: Mapping[str, object],
    ) -> object:
        if not _PLAIN.issuperset(types):
            return NotImplemented  # such as DTensor, whose own operations come here again
        if torch._C._get_dispatch_mode(_FAKE) is not None:
            return func(*args, **kwargs)  # torch tries out shapes

        inputs = [*tensors_in(args), *tensors_in(list(kwargs.values()))]
        is_fake = any(isinstance(tensor, FakeTensor) for tensor in inputs)
        if func in _ASKS and is_fake:
            return self._unknown(inputs[0])
        if not is_fake:
            is_fake = self._becomes_fake(inputs, kwargs)
        if func.namespace in _COLLECTIVES:
            self._exchange(func, args)
        if is_fake and func in _SELECTS:
            func, args, kwargs = self._select_all(func, *args)

        self.depth += 1
        try:
            if is_fake:
                with self.fakes:
                    result = func(*args, **kwargs)
            else:
                result = func(*args, **kwargs)
        finally:
            self.depth -= 1
        if is_fake and func._schema.is_mutable and not isinstance(inputs[0], FakeTensor):
            inputs[0].zero_()  # it would have got values that only a real run has
        self._count(func, args, kwargs, inputs, result)
        return result

    def _select_all(
        self, func: torch._ops.OpOverload, tensor: torch.Tensor, chosen: Any = None
    ) -> tuple[torch._ops.OpOverload, tuple[object, ...], dict[str, object]]:
        """Return an operation with its arguments that selects all, in place of one whose size
        depends on values."""
        if func is aten.nonzero.default:
            self._decisions.select()
            size = [tensor.numel(), tensor.dim()]
            return aten.new_empty.default, (tensor, size), {"dtype": torch.int64}
        if func is aten.masked_select.default:
            self._decisions.select()
            shape = torch.broadcast_shapes(tensor.shape, chosen.shape)
            return aten.new_empty.default, (tensor, [shape.numel()]), {}

        indices: list[torch.Tensor | None] = []
        for index in chosen:
            if index is None or index.dtype not in (torch.bool, torch.uint8):
                indices.append(index)
                continue
            self._decisions.select()
            with self.fakes:
                indices += [torch.empty(index.numel(), dtype=torch.int64)] * index.dim()
        return func, (tensor, indices), {}

    def _becomes_fake(self, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Return whether an operation on real tensors has a fake result: one on the GPU, or one in
        place of a tensor without values."""
        device = kwargs.get("device")
        if device is not None and device.type == "meta":
            return False
        if self.moving is not None:
            return True
        if not inputs:  # such as FSDP2's buffers, which it fills with fake gradients
            return not self.has_gpu and self._caller().startswith(_DISTRIBUTED)
        return device is not None and any(tensor.is_meta for tensor in inputs)

    @staticmethod
    def _caller() -> str:
        """Return the file of the nearest caller outside of this program and of torch's wrappers."""
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename.startswith(_WRAPPERS):
            frame = frame.f_back
        return str(frame.f_code.co_filename)

    def _unknown(self, tensor: Any) -> Any:
        """Return a value in place of the one of a tensor without memory. torch's own decisions,
        such as those of its gradient scaler, find nothing unusual."""
        if tensor.constant is not None:
            return tensor.constant.item()
        if tensor.dtype is torch.bool:
            return self._decisions.decide() if self._is_asked_by_script() else False
        number = 1 if self._is_asked_by_script() else 0
        return float(number) if tensor.dtype.is_floating_point else number

    @staticmethod
    def _is_asked_by_script() -> bool:
        """Return whether the nearest caller outside of this program is no gradient scaler."""
        frame: Any = sys._getframe(1)
        while frame.f_code.co_filename.startswith((_HERE, _TORCH)):
            if frame.f_code.co_filename.startswith(_SCALERS):
                return False
            frame = frame.f_back
        return True

    def _count(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[Any],
        result: Any,
    ) -> None:
        """Count the memory of the results, and the work."""
        is_on_device = False
        kind = self._kind(func, inputs)
        outputs = list(tensors_in(result))
        for tensor in outputs:
            if not tensor.is_meta and (isinstance(tensor, FakeTensor) or not self.has_gpu):
                is_on_device |= kind != HOST
                self.ledger.add(tensor, kind)
        if not is_on_device or func.is_view:
            return

        counter = flop_registry.get(func._overloadpacket)
        # torch's counters know no operations that are given the type of their result
        shapes = [value for value in args if not isinstance(value, torch.dtype)]
        flops = 0 if counter is None else counter(*shapes, **kwargs, out_val=result)
        size = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))
        self.operations[Operation(func, outputs[0].dtype, int(flops), size)] += 1

    def _kind(self, func: Any, inputs: Sequence[Any]) -> str:
        """Return what the result of an operation is for."""
        if self.moving is not None:
            return self.moving
        if self.has_gpu and not any(map(self.is_on_device, inputs)):
            return HOST
        if func.namespace in (*_COLLECTIVES, "fsdp"):
            return COMMUNICATION
        if self.phase or torch._C._current_graph_task_id() != -1:
            return TEMPORARIES
        return ACTIVATIONS

    def _exchange(self, func: Any, args: Sequence[Any]) -> None:
        """Count a collective by the bytes of its largest argument."""
        members: list[int] = []
        for value in args:
            with suppress(RuntimeError, TypeError):  # others are for example the kind of reduction
                members = _members(value)
        if len(members) < 2:
            return
        lists = [list(tensors_in(value)) for value in args]
        sizes = [sum(t.numel() * t.element_size() for t in tensors) for tensors in lists]
        instances = len({rank // self.local_world for rank in members})
        name = func._overloadpacket.__name__
        self.exchanges[Exchange(name, max(sizes, default=0), len(members), instances)] += 1


def _members(value: object) -> list[int]:
    """Return the ranks of the process group that an argument of a collective means.

    Raises:
        RuntimeError, TypeError: it means no group.
    """
    if isinstance(value, str):
        named: Any = value
        group = dist.distributed_c10d._resolve_process_group(named)
    elif isinstance(value, torch.ScriptObject):
        group = dist.ProcessGroup.unbox(value)
    else:
        raise TypeError
    return list(dist.get_process_group_ranks(group))


def attention_flops(query: Any, key: Any, value: Any, *_: object, **__: object) -> int:
    """Return the floating-point operations of attention on a CPU, which torch does not count."""
    batch, heads, length, width = query
    return int(2 * batch * heads * length * key[-2] * (width + value[-1]))
