from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import ioctl
from termios import TIOCGWINSZ, TIOCSWINSZ
from threading import Thread
from tty import setraw
from typing import IO, TYPE_CHECKING, Annotated

import typer

from cloudtrain.cli import options
from cloudtrain.cli.follow import instance_number
from cloudtrain.cli.options import argument, flag, option
from cloudtrain.cli.runs import confirm, run_named
from cloudtrain.cli.terminal import print_lines, say, typed
from cloudtrain.errors import PersonNeeded, TargetError, UsageError
from cloudtrain.lifecycle.runs.sweep import sweep_of
from cloudtrain.system.processes import listening
from cloudtrain.targets.common.remote import BEGIN, MARKS
from cloudtrain.targets.inside import ExecRequest, NotOpen, Session

if TYPE_CHECKING:
    from cloudtrain.lifecycle.runs.run import Run

    _Child = subprocess.Popen[bytes]


def exec_command(
    name: options.RunName,
    command: Annotated[
        list[str] | None,
        argument("[COMMAND]...", "A program and its arguments. Default: a shell."),
    ] = None,
    rank: options.Rank = None,
    instance: options.Instance = None,
    trial: options.Trial = None,
    forward: Annotated[
        list[str] | None,
        option(
            "--forward",
            "[LOCAL:]PORT",
            "Make this port of the run's machine a port of 127.0.0.1 here. Repeatable.",
        ),
    ] = None,
    ssh_config: Annotated[
        bool, flag("--ssh-config", "Print what `~/.ssh/config` needs, as for VS Code.")
    ] = False,
    yes: Annotated[
        bool, flag("--yes -y", "Let the target open the run to commands without asking.")
    ] = False,
) -> None:
    """Run a command or a shell inside a run, or forward its ports.

    The command runs in the environment and the folder of a rank: the lowest one by default. Ctrl-C
    reaches only the command, and its exit code is that of `exec`.

    \b
    Examples:
      cloudtrain exec last
      cloudtrain exec last --rank 3 -- nvidia-smi
      cloudtrain exec last -- sh -c 'ls -l *.pt | head'
      cloudtrain exec last --forward 6006 -- tensorboard --logdir . --port 6006
      cloudtrain exec last --ssh-config
    """
    if ssh_config and (command or forward):
        raise UsageError(
            "`--ssh-config` only prints", hint="give `--ssh-config` alone", code="CT902"
        )
    ports = list(map(_ports, forward or ()))
    run = run_named(name)
    if trial is not None:
        run = sweep_of(run).trial(trial)
    elif run.is_sweep:
        hint = f"name one of its trials: {typed('cloudtrain', 'exec', run.name, '--trial', '1')}"
        raise UsageError(
            f"`{run.name}` is a sweep, which has no processes", hint=hint, code="CT902"
        )

    asked = ExecRequest(
        tuple(command or ()), rank, instance_number(instance), is_for_ssh=ssh_config
    )
    if ssh_config:
        session = _enter(run, asked, yes)
        options_of_ssh = [f"    {key} {value}" for key, value in session.ssh.items()]
        print_lines([f"Host {run.name}", *options_of_ssh])
        return

    with ExitStack() as stack:
        tunnels: list[_Child] = []
        for local_port, port in ports:
            here = asked._replace(command=(), port=port, local_port=local_port)
            tunnel = _forwarded(_enter(run, here, yes), local_port, port)
            tunnels += stack.enter_context(tunnel)
        if ports and not command:
            with suppress(KeyboardInterrupt):
                _wait_for(tunnels)
            return
        is_on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        session = _enter(run, asked._replace(has_terminal=is_on_terminal), yes)
        raise typer.Exit(_run(session))


def _ports(text: str) -> tuple[int, int]:
    """Return the port of this machine and that of the run, from `6006` or `8080:6006`."""
    here, _, port = text.rpartition(":")
    numbers = [word for word in (here or port, port) if word.isdecimal() and len(word) < 6]
    if len(numbers) == 2 and all(0 < int(number) < 65536 for number in numbers):
        return int(numbers[0]), int(numbers[1])
    hint = "write the port, such as `--forward 6006`, or both: `--forward 8080:6006`"
    raise UsageError(f"`{text}` is not a port", hint=hint, code="CT909")


def _enter(run: Run, asked: ExecRequest, yes: bool) -> Session:
    """Return the session, and let the target change the run for it if the user agrees."""
    with listening(say):
        try:
            return run.enter(asked)
        except NotOpen as error:
            if not error.question:
                raise
            if not yes and not confirm(error.question):
                raise PersonNeeded(error.message, hint=error.hint, code=error.code) from None
        return run.enter(asked._replace(may_open=True))


# The command, with the terminal of cloudtrain.


@contextmanager
def _signals_passed_to(child: _Child) -> Iterator[None]:
    """Let Ctrl-C, which the terminal sends to the command too, end only that. Other signals are
    passed on."""

    def pass_on(number: int, _: object) -> None:
        if number != signal.SIGINT:
            child.send_signal(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(session: Session) -> int:
    """Run the command and return its exit code."""
    sys.stdout.flush()
    if not session.is_marked:
        child = _start(session)
        with _signals_passed_to(child):
            return _code_of(child)

    # a program may ask its stdout for the size of the terminal
    reader, writer = os.openpty() if sys.stdout.isatty() else os.pipe()
    with os.fdopen(reader, "rb") as source:
        with os.fdopen(writer, "wb") as output:
            if output.isatty():
                setraw(output.fileno())
            child = _start(session, output)
        with _signals_passed_to(child):
            marked_code = _pass_marked(source.fileno())
    # a process that still prints has no reader any more, so it ends
    with child, _signals_passed_to(child):
        code = _code_of(child)
    if marked_code is not None:
        return marked_code
    say("the session ended, and the command's exit code is unknown")
    return code or TargetError.exit_code


def _start(session: Session, stdout: IO[bytes] | None = None) -> _Child:
    """Start the command. Exits as a shell does if there is no such program."""
    stdin = None if session.has_stdin else subprocess.PIPE
    environ = dict(session.environ)
    try:
        return subprocess.Popen(
            session.argv, env=environ, cwd=session.cwd, stdin=stdin, stdout=stdout
        )
    except OSError as error:
        program = session.argv[0]
        say(f"`{program}` cannot be started: {error.strerror}")
        if " " in program:
            say(f"a line for a shell needs one: {typed('sh', '-c', program)}")
        raise typer.Exit(127 if isinstance(error, FileNotFoundError) else 126) from None


def _code_of(child: _Child) -> int:
    """Return the exit code as a shell tells it: 128 and the number of the signal that ended it."""
    code = child.wait()
    return code if code >= 0 else 128 - code


def _pass_marked(reader: int) -> int | None:
    """Print what stands between the marks, as it comes, and return the exit code after them; None
    if the output ends without one."""
    held = b""
    has_begun = False
    code = None
    for chunk in _chunks(reader):
        held += chunk
        begin = None if has_begun else BEGIN.search(held)
        if begin is not None:
            has_begun = True
            held = held[begin.end() :]
        if code is not None or not has_begun:
            continue
        end = MARKS.search(held)
        if end is not None:
            _write(end[1])
            code = int(end[2])
            continue
        # the end of it may be the beginning of a mark
        cut = held.rfind(b"\x01", max(0, len(held) - _LONGEST_MARK))
        cut = len(held) if cut < 0 else cut
        _write(held[:cut])
        held = held[cut:]
    if code is None:
        sys.stderr.write(held.decode("utf-8", "replace"))
    return code


_LONGEST_MARK = 20


def _chunks(reader: int) -> Iterator[bytes]:
    """Yield what comes from a pipe or a terminal, which gets the size of the user's own."""
    while True:
        if os.isatty(reader):
            with suppress(OSError):
                size = ioctl(sys.stdout.fileno(), TIOCGWINSZ, bytes(8))
                ioctl(reader, TIOCSWINSZ, size)
        if not select.select([reader], [], [], _LOOK)[0]:
            continue
        try:
            chunk = os.read(reader, 1 << 16)
        except OSError:  # so a terminal says that nobody writes to it any more
            return
        if not chunk:
            return
        yield chunk


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


# Ports, each by a process that listens on 127.0.0.1.


@contextmanager
def _forwarded(session: Session, local_port: int, port: int) -> Iterator[list[_Child]]:
    """Forward a port during the `with` block, which gets the process that does it, if one is
    needed."""
    address = f"`http://127.0.0.1:{local_port}`"
    if not session.argv:
        say(f"the run is on this machine, and so is its port {port}: {address}")
        yield []
        return

    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", local_port))
        except OSError as error:
            message = f"port {local_port} of this machine cannot be used: {error.strerror}"
            hint = f"choose another one: `--forward {local_port % 60000 + 1024}:{port}`"
            raise UsageError(message, hint=hint, code="CT959") from error
    pipe = subprocess.PIPE
    # Ctrl-C is for another process of this terminal
    with subprocess.Popen(
        session.argv, env=dict(session.environ), stdin=pipe, stdout=pipe, start_new_session=True
    ) as child:
        assert child.stdout is not None, "it is a pipe"
        try:
            if not any(session.ready in line for line in child.stdout):
                raise _ended(f"port {port} of the run cannot be forwarded")
            # what it prints later must not fill the pipe
            Thread(target=child.stdout.read, daemon=True).start()
            say(f"port {port} of the run is here: {address}; Ctrl-C ends it")
            yield [child]
        finally:
            with suppress(OSError):  # it has ended
                os.killpg(child.pid, signal.SIGTERM)


def _ended(message: str) -> TargetError:
    hint = "the lines above may say why; `cloudtrain status` shows whether the run goes on"
    return TargetError(message, hint=hint, code="CT959")


def _wait_for(tunnels: list[_Child]) -> None:
    """Wait for Ctrl-C. Raises `TargetError` if a tunnel ends by itself."""
    while tunnels:
        if any(tunnel.poll() is not None for tunnel in tunnels):
            raise _ended("a port is no longer forwarded")
        time.sleep(_LOOK)


_LOOK = 0.5
"""Seconds between two looks at tunnels, or at a terminal's size."""
