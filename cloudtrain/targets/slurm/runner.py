"""Run shell scripts on the machine that has Slurm's commands: this machine, or a login node through
the system's `ssh`."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from threading import Thread
from typing import IO

from cloudtrain.documents.document import load_table
from cloudtrain.errors import TargetError, TargetUnavailable, TargetUnreachable
from cloudtrain.system.private import make_private_folder, require_own
from cloudtrain.targets.capacity import read_words
from cloudtrain.targets.common.remote import remote_line
from cloudtrain.targets.common.tracebacks import shorten_line
from cloudtrain.targets.slurm.shell import shell_script

# The command line of the system's ssh. All commands within a few minutes share one connection, so
# that ssh logs in only once.

_LONGEST = 100
"""Maximum length of a socket's path in bytes. ssh appends 17 bytes while it opens the socket."""

_NAME = 40 + 17 + 1


def ssh_argv(state_dir: Path, terminal: str = "-T") -> list[str]:
    """Return the beginning of the ssh command line. `terminal` is `-t` if the command gets the
    user's terminal. ssh asks no questions; keys, host names and
    jump hosts come from the user's own configuration. Raises `OSError` if the folder for ssh's
    sockets belongs to another user. This is private: a subfolder of `state_dir`, or of the system's
    temporary folder if the path of a socket in `state_dir` would be too long."""
    folder = state_dir / "ssh"
    if len(os.fsencode(folder)) + _NAME > _LONGEST:
        folder = Path(gettempdir(), f"cloudtrain-{os.getuid()}")
    make_private_folder(folder)
    require_own(folder)
    options = (
        "BatchMode=yes",
        "ConnectTimeout=20",
        "ServerAliveInterval=15",
        "ControlMaster=auto",
        f"ControlPath={folder}/%C",
        "ControlPersist=120",
    )
    argv = ["ssh", terminal]
    for option in options:
        argv += ["-o", option]
    return argv


_MARK = b"\x01cloudtrain\x01\n"
"""The text that a script prints first, to separate its output from a greeting of the login
shell."""

_PREFIX = "printf '\\001cloudtrain\\001\\n'\n"

_TIMEOUT = 180
"""Time limit in seconds for a script that transfers no file."""

WORDS = load_table(__file__, "words.toml")
CAPACITY = read_words(__file__)
"""What Slurm's words and the scripts' exit codes mean."""

_COMMAND = r"^(?:\w+: )?error: |^(?:-?bash|cloudtrain): (?:line \d+: )?"
"""The prefix of a message: `sbatch: error: `, or of the shell's own: `cloudtrain: line 3: `."""

_SSH_FAILED = 255
_NOT_FOUND = 127


class CommandFailed(TargetError):
    """A script ended with a nonzero exit code."""

    def __init__(self, code: int, errors: str, *, hint: str) -> None:
        super().__init__(errors or f"a command of Slurm ended with exit code {code}", hint=hint)
        self.exit_status = code


def rows_of(answer: bytes) -> list[tuple[str, str]]:
    """Return the lines of a script's output, each as its first word and the rest."""
    rows = []
    for line in answer.decode("utf-8", "replace").splitlines():
        word, _, rest = line.partition(" ")
        rows.append((word, rest))
    return rows


class Runner:
    """Runs scripts on `host`, a name that ssh knows, or on this machine (`host` is None)."""

    def __init__(self, host: str | None, environ: Mapping[str, str], state_dir: Path) -> None:
        self.host = host
        self.environ = {name: value for name, value in environ.items() if not _is_of_a_job(name)}
        self.state_dir = state_dir

    def run(self, script: str, *arguments: str, stdin: bytes = b"") -> bytes:
        """Run a script of `shell/`, which reads `arguments` as `$1`, `$2` and so on, and return its
        output. Raises `TargetUnreachable` if the login node or the cluster does not answer,
        `TargetUnavailable` if the machine lacks a command, such as ssh or sbatch, and
        `CommandFailed` with the script's error output."""
        argv = self._argv(script, arguments)
        try:
            process = subprocess.run(
                argv, input=stdin, capture_output=True, timeout=_TIMEOUT, env=self.environ
            )
        except subprocess.TimeoutExpired:
            message = f"{self._where} did not answer within {_TIMEOUT} s"
            raise TargetUnreachable(message, hint=self._hint) from None
        except OSError as error:
            message = f"`{argv[0]}` cannot be started: {error.strerror}"
            raise self._unavailable(message) from None
        self._check_exit(process.returncode, process.stderr)
        return self._answer(process.stdout)

    def send(
        self, script: str, *arguments: str, chunks: Iterable[bytes], on_sent: Callable[[int], None]
    ) -> bytes:
        """Run a script that reads `chunks` from stdin, and return its output. `on_sent` gets the
        number of bytes of each sent chunk."""
        with self._open(script, arguments, subprocess.PIPE) as process:
            assert process.stdin is not None, "it is a pipe"
            output = _drain(process.stdout)
            errors = _drain(process.stderr)
            # A script that fails stops reading; its exit code tells why.
            with suppress(BrokenPipeError):
                for chunk in chunks:
                    process.stdin.write(chunk)
                    on_sent(len(chunk))
            with suppress(BrokenPipeError):
                process.stdin.close()
            code = process.wait()
            answer = output()
            self._check_exit(code, errors())
            return self._answer(answer)

    def read(self, script: str, *arguments: str, take: Callable[[IO[bytes]], None]) -> str:
        """Run a script and call `take` with the stream of its output, while the script is
        running. Return what it wrote to stderr."""
        with self._open(script, arguments, subprocess.DEVNULL) as process:
            assert process.stdout is not None, "it is a pipe"
            errors = _drain(process.stderr)
            for line in process.stdout:
                if line.endswith(_MARK):
                    break
            try:
                take(process.stdout)
            except BaseException:
                process.kill()  # it may wait forever for a reader
                raise
            process.stdout.read()  # what `take` left, so that the script can end
            self._check_exit(process.wait(), errors())
            return errors().decode("utf-8", "replace")

    def _open(self, script: str, arguments: Sequence[str], stdin: int) -> subprocess.Popen[bytes]:
        argv = self._argv(script, arguments)
        try:
            return subprocess.Popen(
                argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environ
            )
        except OSError as error:
            message = f"`{argv[0]}` cannot be started: {error.strerror}"
            raise self._unavailable(message) from None

    def _argv(self, script: str, arguments: Sequence[str]) -> list[str]:
        text = _PREFIX + shell_script(script)
        if self.host is None:
            return ["bash", "-c", text, "cloudtrain", *arguments]
        # modules and profiles put Slurm's commands on the PATH
        line = remote_line(text, arguments, "-lc")
        return [*ssh_argv(self.state_dir), "--", self.host, line]

    def _answer(self, output: bytes) -> bytes:
        """Return a script's own output, which follows the mark."""
        _, mark, answer = output.partition(_MARK)
        if not mark:
            raise TargetUnreachable(f"{self._where} did not answer", hint=self._hint)
        return answer

    def _check_exit(self, code: int, stderr: bytes) -> None:
        """Raise the error that an exit code and the error output of a script mean, if any."""
        if code == 0:
            return
        errors = find_errors(stderr.decode("utf-8", "replace"))
        if self.host is not None and code == _SSH_FAILED:
            message = f"{self._where} cannot be reached: {errors or 'ssh gave no reason'}"
            raise TargetUnreachable(message, hint=self._hint)
        if any(word in errors for word in WORDS["errors"]["unreachable"]):
            message = f"the Slurm cluster does not answer: {errors}"
            raise TargetUnreachable(message, hint="try again in a minute")
        if any(word in errors for word in WORDS["errors"]["no_cluster"]):
            raise self._unavailable("its commands find no cluster")
        if code == _NOT_FOUND or "command not found" in errors:
            raise self._unavailable(errors or "a command is missing")

        hint = "this message comes from Slurm; run `sinfo` or `scontrol` on the cluster for details"
        if any(word in errors for word in WORDS["errors"]["of_files"]):
            where = f"on `{self.host}`" if self.host else "on this machine"
            hint = (
                f"look at `shared_dir` of `[slurm]` {where}: it must exist, be yours to "
                "write to, and have room"
            )
        raise CommandFailed(code, errors, hint=hint)

    @property
    def _where(self) -> str:
        return f"the login node `{self.host}`" if self.host else "this machine's Slurm"

    @property
    def _hint(self) -> str:
        if self.host is None:
            return "`sinfo` shows whether the cluster answers"
        return (
            f"`ssh {self.host} sinfo` must work without a password prompt: set up keys, and "
            "a host name that ssh knows"
        )

    def _unavailable(self, message: str) -> TargetUnavailable:
        hint = "set `host` in `[slurm]` of `cloudtrain.toml` to the login node of your cluster"
        if self.host is not None:
            hint = f"`ssh {self.host} sinfo` must find Slurm's commands"
        return TargetUnavailable(f"{self._where} cannot be used: {message}", hint=hint)


_OF_A_JOB = ("SLURM_", "SBATCH_", "SQUEUE_", "SACCT_", "SCANCEL_", "SINFO_")


def _is_of_a_job(name: str) -> bool:
    """Return whether an environment variable is an option for a Slurm command, or describes a Slurm
    job in which cloudtrain itself runs. The scripts run without these variables. They keep those
    that name and open the cluster: its configuration, and the user's token (`auth/jwt`)."""
    return name.startswith(_OF_A_JOB) and name not in ("SLURM_CONF", "SLURM_JWT")


def find_errors(text: str) -> str:
    """Return the errors in the output of Slurm's commands, joined to one line. Without errors,
    return the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line or "failure" in line]
    shown = errors or lines[-1:]
    messages = [re.sub(_COMMAND, "", line) for line in shown]
    return shorten_line("; ".join(dict.fromkeys(messages)))


def _drain(stream: IO[bytes] | None) -> Callable[[], bytes]:
    """Read a stream in a thread. The returned function waits for the stream's end and returns its
    content."""
    assert stream is not None, "it is a pipe"
    parts: list[bytes] = []
    thread = Thread(target=lambda: parts.append(stream.read()), daemon=True)
    thread.start()

    def collect() -> bytes:
        thread.join()
        return b"".join(parts)

    return collect
