"""The command line. One file per command: parse the arguments, call the public API, show the
result.

Exit codes:

    0     the command succeeded, and so did the run that it waited for
    1     the run that the command waited for failed, was stopped or was lost; or uv found no
          versions to lock
    2     the command line, the job or the settings are wrong, or a check found an error; nothing
          was sent
    3     the named run does not exist
    4     the target refused, failed, or cannot be reached; or a rehearsal could not be carried out
    5     the plan is not the one that `--plan` names; nothing was sent
    6     a person has to confirm or approve it at a terminal; nothing was done
    70    a defect in cloudtrain
    74    the output cannot be written, for example on a full disk; a submitted run continues, and
          stderr names it
    130   Ctrl-C or SIGTERM; the followed run continues
    141   the reader of the output closed the pipe, as in `cloudtrain logs NAME | head`
"""

from __future__ import annotations

import gc
import os
import signal
import sys


def command() -> None:
    """Run the `cloudtrain` command and end the process."""
    try:
        main()
    except SystemExit as leaving:
        # Leave without unloading the imported modules, which would take 30 ms. Threads are waited
        # for, exit functions are called and output is flushed, as in a normal exit.
        import atexit
        import threading

        try:
            threading._shutdown()  # type: ignore[attr-defined]  # waits; has no public name
            atexit._run_exitfuncs()
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
        finally:
            os._exit(leaving.code)  # type: ignore[arg-type]  # `main` gives a number


def main() -> None:
    """Run the command line in `sys.argv` and raise SystemExit with its exit code."""
    try:
        # Most objects that a command imports live until the command ends, so collect after 200,000
        # new ones, not 700.
        gc.set_threshold(200_000, 20, 100)
        from cloudtrain.cli.terminal import mend_streams

        mend_streams()
        # SIGTERM then ends a command as Ctrl-C does, which removes its temporary folders
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        from cloudtrain.cli.app import run_command

        exit_code = run_command(sys.argv[1:])
    except KeyboardInterrupt:  # while the program itself was still being read
        exit_code = 130
    sys.exit(exit_code)
