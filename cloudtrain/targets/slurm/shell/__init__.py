"""The shell scripts of a run on Slurm: one file each, beside this one.

The batch script is a part of a plan, and so are the scripts that launchers start on the nodes.
These run the user's program as `"$0" "$@"`. Every rank writes to its own output files, so that no
launcher mixes the lines of several ranks.

    agent       on each node: torchrun with the node's number; `$0` is the interpreter
    torch_rank  what torchrun starts as a rank
    alone       on each node: a process that runs independently of the other nodes
    mpi_rank    a rank of MPI. mpirun would kill its ranks one second after a SIGTERM, so each rank
                checks the file `stopping` itself
    task        a task of TensorFlow. Parameter servers never exit, so the script stops them when
                the chief has ended
    begin       exits at once if the job was asked to stop before the script had started; the first
                task of a node starts the process that watches the node
    idle        a part of the batch script: stops a job whose GPUs are idle
    names       exits at once if the node cannot resolve a host name that its ranks need: torchrun
                would wait for minutes
    wait        a SIGTERM interrupts bash's `wait`, so it is repeated while the program saves
    leave       a task that was asked to stop exits with 0, because srun kills all tasks when one
                task fails, and other tasks may still be saving. The first failure's exit code goes
                to a file, because srun returns the highest exit code, which is the one of a killed
                task.

The others talk to Slurm, and `runner.py` runs them by their names. They get all data as arguments
or on stdin, so that no user's text is ever executed as a command. Times are seconds since the epoch
(`SLURM_TIME_FORMAT`), whatever the time zone is. sbatch inherits the lock of a run, so the lock
becomes free only when no request is in transit.

    open      opens the run for the request with this token; prints the run's job if it already has
              one
    read      prints pieces of files, one after another; the arguments are name, offset and length
              of each piece
    rows      prints the size and the name of each metrics file
    used      prints whether an environment exists, and updates the time of its last use
    provide   runs the script that builds an environment, as a login shell; prints its output and
              errors
    outputs   prints the run's outputs: a JSON object of their places, or the folders of a run that
              somebody gave to sbatch
    tar       prints the files of a folder, or one file, as a tar archive. Links are followed, and
              each name has its own content: tar would otherwise store a second name of a file as a
              link. A link to nothing or to a folder above it is left out, and so is a file that its
              script removes at the same time. The exit code is 3 if there is no such file or
              folder.
    nodes     prints one line for each node and each of its partitions
    ask       runs an interpreter in a login shell, after the lines of the setting `setup` on stdin;
              `ask.py.txt` is what it is asked
    look      prints the result of `sbatch --test-only`, and the cluster's partitions; reads the
              batch script from stdin
"""

from __future__ import annotations

import re
from pathlib import Path

_PARTS = re.compile(r"^source (?P<file>\w+)\.sh\n|@(?P<value>[a-z]+)@", re.MULTILINE)


def shell_script(script: str, /, **values: object) -> str:
    """Return the text of `SCRIPT.sh`. `@NAME@` becomes the value with that name. A line `source
    FILE.sh` becomes the text of that file, because the cluster gets one text."""
    text = Path(__file__).with_name(f"{script}.sh").read_text("utf-8")

    def fill(part: re.Match[str]) -> str:
        if part["file"]:
            return shell_script(part["file"])
        return str(values[part["value"]])

    return _PARTS.sub(fill, text)
