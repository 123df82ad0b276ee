"""Bash scripts that launchers start on the nodes. Each script runs the user's program as `"$0" "$@"`.

Every rank writes to its own output files, so that no launcher mixes the lines of several ranks.
"""

from __future__ import annotations

from shlex import quote


def quote_word(text: str) -> str:
    """Quote a user's text for the batch script. sbatch refuses a script with line ends of Windows, so a carriage return
    is written as `$'\\r'`."""
    return quote(text).replace("\r", "'$'\\r''")


def _to_files(name: str) -> str:
    """Return the shell redirection of a process's stdout and stderr to output files with `name` in their names."""
    file = f"$CLOUDTRAIN_LOGS/node_${{SLURM_NODEID:-0}}.{name}"
    return f'>>"{file}.stdout.log" 2>>"{file}.stderr.log"'


_BEGIN = """\
trap : TERM
[ ! -e "$CLOUDTRAIN_LOGS/stopping" ] || exit 0"""
"""The beginning of each script. It exits at once if the job was asked to stop before the script had started."""

_WAIT = """
wait $!
status=$?
while kill -0 $! 2>/dev/null; do wait $!; status=$?; done"""
"""Waits for the program to exit. A SIGTERM interrupts bash's `wait`, so it is repeated while the program saves."""

_LEAVE = """
[ ! -e "$CLOUDTRAIN_LOGS/stopping" ] || status=0
[ $status = 0 ] || (set -C; echo $status >"$CLOUDTRAIN_LOGS/failed") 2>/dev/null
exit $status"""
"""The end of each script. A task that was asked to stop exits with 0, because srun kills all tasks when one task fails,
and other tasks may still be saving. The script writes the first failure's exit code to a file, because srun returns the
highest exit code, which is the one of a killed task."""

AGENT = f"""\
{_BEGIN}
"$0" -m torch.distributed.run --node-rank "$SLURM_NODEID" "$@" {_to_files("launcher")} &{_WAIT}{_LEAVE}"""
"""The script for `bash -c` on each node: torchrun with the node's number. `$0` is the interpreter."""

TORCH_RANK = f'exec "$0" "$@" {_to_files("rank_$RANK")}'
"""The script for `bash -c` that torchrun starts as a rank."""

ALONE = f"""\
{_BEGIN}
number=$SLURM_PROCID
export CLOUDTRAIN_INSTANCE=$SLURM_NODEID CLOUDTRAIN_INSTANCE_COUNT=$SLURM_NNODES
unset SLURM_PROCID SLURM_LOCALID
"$0" "$@" {_to_files("rank_$number")} &{_WAIT}{_LEAVE}"""
"""The script for `bash -c` on each node: a process that runs independently of the other nodes."""

MPI_RANK = f"""\
{_BEGIN}
"$0" "$@" {_to_files("rank_${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}")} &
while kill -0 $! 2>/dev/null; do
  if [ -e "$CLOUDTRAIN_LOGS/stopping" ]; then kill -TERM $!; break; fi
  sleep 1
done{_WAIT}{_LEAVE}"""
"""The script for `bash -c` as an MPI rank. mpirun would kill its ranks one second after a SIGTERM, so each rank checks
the file `stopping` itself."""

TASK = f"""\
{_BEGIN}
number=$SLURM_PROCID rank=$SLURM_PROCID
unset SLURM_PROCID SLURM_LOCALID
if [ "$CLOUDTRAIN_SERVERS" = 0 ]; then kind=worker
elif [ "$number" = 0 ]; then kind=chief
elif [ "$number" -lt "$CLOUDTRAIN_WORKERS" ]; then kind=worker number=$((number - 1))
else kind=ps number=$((number - CLOUDTRAIN_WORKERS)); fi
task="{{\\"index\\":$number,\\"type\\":\\"$kind\\"}}"
export TF_CONFIG="{{\\"cluster\\":$CLOUDTRAIN_CLUSTER,\\"environment\\":\\"cloud\\",\\"task\\":$task}}"
"$0" "$@" {_to_files("rank_$rank")} &
while [ $kind != chief ] && [ "$CLOUDTRAIN_SERVERS" != 0 ] && kill -0 $! 2>/dev/null; do
  if [ -e "$CLOUDTRAIN_LOGS/chief_ended" ]; then kill -TERM $!; wait $!; exit 0; fi
  sleep 1
done{_WAIT}
[ $kind != chief ] || touch "$CLOUDTRAIN_LOGS/chief_ended"{_LEAVE}"""
"""The script for `bash -c` as a TensorFlow task. Parameter servers never exit, so the script stops them when the chief
has ended."""
