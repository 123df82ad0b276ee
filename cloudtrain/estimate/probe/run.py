"""Runs a script as one rank until its optimizer has stepped often enough, and writes what it saw.

The audit hook keeps a script from sending, starting programs and overwriting files by accident. It
is no sandbox: a script that wants to can pass it.
"""

from __future__ import annotations

import bisect
import contextlib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from .gpu import VisibleGpu, stand_in_for
from .ledger import GRADIENTS, KINDS, OPTIMIZER, PARAMETERS, Ledger
from .standins import nothing, replace, stand_in
from .tensors import Decisions, Refusal, Tensors, _Guess, attention_flops

_NETWORK = {"socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"}
_PROGRAMS = {
    "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty",
    "os.kill", "os.killpg", "pty.spawn",
}  # fmt: skip
_NO_PROCESS = "no process is started or stopped while a job is estimated"
_NONE = slice(0, 0)
_FIRST = slice(0, 1)
_SECOND = slice(1, 2)
_CHANGES = {
    "os.remove": _FIRST, "os.rename": slice(0, 2), "os.mkdir": _FIRST, "os.rmdir": _FIRST,
    "os.link": _SECOND, "os.symlink": _SECOND, "os.truncate": _FIRST, "os.chmod": _FIRST,
    "os.chown": _FIRST, "os.utime": _FIRST, "os.setxattr": _FIRST, "os.removexattr": _FIRST,
    "shutil.rmtree": _FIRST, "shutil.move": slice(0, 2),
}  # fmt: skip
"""Events that change files, each with its arguments that name them."""
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Blocked(PermissionError):
    """The script reaches outside: to the network, to other programs, or to files that it does not
    own."""


def _watch(scratch: str) -> None:
    """Refuse what reaches outside of the folder `scratch`, except reading."""
    scratch = os.path.realpath(scratch)

    def is_own(path: object) -> bool:
        if isinstance(path, int):
            return True
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        real = os.path.realpath(text)
        return real.startswith((f"{scratch}/", "/dev/", "/proc/self/")) or real == scratch

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _NETWORK:
            raise Blocked("the network is not used while a job is estimated")
        if event in _PROGRAMS:
            raise Blocked(_NO_PROCESS)
        for path in arguments[_CHANGES.get(event, _NONE)]:
            if not is_own(path):
                raise Blocked(f"`{path}` is not changed while a job is estimated")
        if event == "open" and arguments[2] & _WRITES and not is_own(arguments[0]):
            raise Blocked(f"`{arguments[0]}` is not written while a job is estimated")

    def refuse(*_: object) -> NoReturn:
        raise Blocked(_NO_PROCESS)

    sys.addaudithook(hook)
    # multiprocessing starts its programs without an event
    with contextlib.suppress(ImportError):
        import _posixsubprocess
        from multiprocessing import resource_tracker

        replace(_posixsubprocess, fork_exec=refuse)
        replace(resource_tracker, register=nothing, unregister=nothing)


class Modules:
    """Which module of the model runs. In the backward pass, the one whose forward made the node."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.samples: list[int] = []
        self._running: list[str] = []
        self._starts: list[int] = []
        self._started: list[str] = []
        self._given: list[Any] = [[], False]
        call = torch.nn.Module.__call__

        def called(module: Any, *arguments: Any, **named: Any) -> Any:
            if not self._running:
                self._given = _shape_of([*arguments, *named.values()])
            return call(module, *arguments, **named)

        torch.nn.Module.__call__ = called  # type: ignore[method-assign]
        torch.nn.modules.module.register_module_forward_pre_hook(self._enter)
        torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True)

    def current(self) -> str:
        """Return the name of the running module; empty outside of the model."""
        if torch._C._current_graph_task_id() == -1:
            running = self._running[-1:]  # a thread that reads batches may ask meanwhile
            return running[0] if running else ""
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        index = bisect.bisect_right(self._starts, node._sequence_nr()) - 1
        name = self._started[index] if index >= 0 else ""
        return f"backward of {name}" if name else "backward"

    def _enter(self, module: Any, _arguments: object) -> None:
        if not self._running:
            for name, part in module.named_modules():
                name = name.removeprefix("module.")
                self.names[id(part)] = name or type(part).__name__
            if torch.is_grad_enabled():
                self.samples.append(self._given)
        self._running.append(self.names.get(id(module), type(module).__name__))
        self._mark()

    def _leave(self, _module: object, _arguments: object, _result: object) -> None:
        if self._running:
            self._running.pop()
        self._mark()

    def _mark(self) -> None:
        number = torch._C._autograd._get_sequence_nr()
        if self._starts and number < self._starts[-1]:
            return  # a recomputation in the backward pass
        self._starts.append(number)
        self._started.append(self._running[-1] if self._running else "")


def _shape_of(arguments: Any) -> Any:
    """Return the shape of the first tensor, and whether it holds tokens. What another module of the
    step has computed is no sample."""
    for value in arguments:
        if isinstance(value, torch.Tensor):
            if value.grad_fn is not None:
                break
            return [list(value.shape), not value.dtype.is_floating_point]
    return [[], False]


class Probe:
    """One probed run of a script."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.steps: dict[int, int] = {}
        self.decisions = Decisions(spec["code"], answer=spec["decide"])
        _Guess.decisions = self.decisions
        self.modules = Modules()
        block = 512 if spec["gpu"] else 1
        self.ledger = Ledger(block, self._place)
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        self.tensors = Tensors(bool(spec["gpu"]), local_world, self.ledger, self.decisions)
        self.work: tuple[Any, Any] = ({}, {})
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        self._hooked: set[int] = set()

    def run(self) -> NoReturn:
        """Run the script, and write what was seen."""
        stand_in(self.tensors, Path(self.spec["mail"]))
        if self.spec["gpu"]:
            stand_in_for(VisibleGpu(**self.spec["gpu"]), self.tensors)
        refused = None
        message = "no optimizer of torch stepped before the script ended"
        with self.tensors:
            try:
                self._run_script()
            except SystemExit as stop:
                if stop.code:
                    message = f"the script exits: {stop.code}"
            except BaseException as error:  # noqa: BLE001
                refused = self._refusal(error)
        if refused is None and not self.steps:
            refused = {"message": message, "place": ""}
        self._end(refused)

    def _run_script(self) -> None:
        spec = self.spec
        sys.argv = [spec["program"], *spec["arguments"]]
        if spec["module"]:
            runpy.run_module(spec["program"], run_name="__main__", alter_sys=True)
            return
        sys.path.insert(0, os.path.dirname(os.path.abspath(spec["program"])))
        runpy.run_path(spec["program"], run_name="__main__")

    def _place(self) -> str:
        if self.tensors.phase:
            return "the optimizer's step"
        return self.modules.current()

    def _before_step(self, optimizer: Any, *_: object) -> None:
        self.tensors.phase = "optimizer"
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._classify(parameter, PARAMETERS)
                self._has_gradient(parameter)
                if id(parameter) in self._hooked:
                    continue
                self._hooked.add(id(parameter))
                if parameter.requires_grad and parameter.is_leaf:
                    parameter.register_post_accumulate_grad_hook(self._has_gradient)

    def _has_gradient(self, parameter: Any) -> None:
        if parameter.grad is not None:
            self._classify(parameter.grad, GRADIENTS)

    def _classify(self, tensor: Any, kind: str) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if self.tensors.is_on_device(tensor):
            self.ledger.classify(tensor, kind)

    def _after_step(self, optimizer: Any, *_: object) -> None:
        self.tensors.phase = ""
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self._classify(value, OPTIMIZER)
        count = self.steps.get(id(optimizer), 0) + 1
        self.steps[id(optimizer)] = count
        tensors = self.tensors
        self.work = (dict(tensors.operations), dict(tensors.exchanges))
        self.batches = self.modules.samples[:]
        if count >= self.spec["steps"]:
            self._end(None)  # without an exception, which the script could catch
        if len(self.steps) == 1 or count > 1:
            tensors.restart()
            self.modules.samples.clear()

    def _refusal(self, error: BaseException) -> dict[str, str]:
        """Return why the script cannot be followed, and its line."""
        if os.environ.get("CLOUDTRAIN_DEBUG"):
            traceback.print_exception(error)
        while error.__cause__ is not None:
            error = error.__cause__
        text = str(error).strip().partition("\n")[0]
        if isinstance(error, MemoryError):
            text = "the script itself takes more than half of this machine's memory"
        elif not isinstance(error, Refusal | Blocked):
            text = f"{type(error).__name__}: {text}"
        place = ""
        for frame in traceback.extract_tb(error.__traceback__):
            name = frame.filename.removeprefix(self.spec["code"])
            is_own = name.startswith(f"cloudtrain{os.sep}")  # the bundle has our modules, too
            if name != frame.filename and not is_own:
                place = f"{name}:{frame.lineno}"
        return {"message": text[:300], "place": place}

    def _end(self, refused: dict[str, str] | None) -> NoReturn:
        """Write what was seen, and end the process."""
        with open(self.spec["result"], "w", encoding="utf-8") as file:
            json.dump(self._result(refused), file)
        sys.stdout.flush()
        os._exit(1 if refused else 0)

    def _result(self, refused: dict[str, str] | None) -> dict[str, Any]:
        operations, exchanges = self.work
        ledger = self.ledger
        return {
            "refused": refused,
            "peak": ledger.peak,
            "kinds": {kind: ledger.at_peak[kind] for kind in KINDS},
            "place": ledger.place,
            "peaks": [
                [place, peak, {kind: kinds[kind] for kind in KINDS}]
                for place, (peak, kinds) in ledger.peaks.items()
            ],
            "steps": max(self.steps.values(), default=0),
            "batches": getattr(self, "batches", []),
            "operations": [
                [str(item.func), str(item.dtype).removeprefix("torch."), *item[2:], count]
                for item, count in operations.items()
            ],
            "exchanges": [[*item, count] for item, count in exchanges.items()],
            "decisions": list(self.decisions.places),
            "selections": list(self.decisions.selections),
        }


_MOST_WRITTEN = 4 * 2**30
"""Bytes that the script may write into one file, also into its output."""


def _limit() -> None:
    """Keep the script from filling the memory or the disk of this machine."""
    with contextlib.suppress(AttributeError, ImportError, OSError, ValueError):
        import resource

        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_WRITTEN, _MOST_WRITTEN))


def main() -> NoReturn:
    """Run the script that the file in the arguments describes, and write the result beside it."""
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    sys.dont_write_bytecode = True
    torch.utils.flop_counter.register_flop_formula(
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    )(attention_flops)
    probe = Probe(spec)
    _limit()
    _watch(spec["scratch"])
    probe.run()
