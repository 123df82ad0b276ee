"""What runs on the nodes in the place of a rank: pieces of bash around the user's program, which `"$0" "$@"` is.

Every rank sends its own output to files of its own, so that no launcher mixes the lines of several.
"""

from __future__ import annotations


def _to_files(name: str) -> str:
    """The redirection of a process to the files of its name."""
    file = f"$CLOUDTRAIN_LOGS/node_${{SLURM_NODEID:-0}}.{name}"
    return f'>>"{file}.stdout.log" 2>>"{file}.stderr.log"'


_BEGIN = """\
trap : TERM
[ ! -e "$CLOUDTRAIN_LOGS/stopping" ] || exit 0"""
"""The beginning of what srun starts: a SIGTERM may have come before there was anything to send it to."""

_WAIT = """
wait $!
status=$?
while kill -0 $! 2>/dev/null; do wait $!; status=$?; done"""
"""A SIGTERM ends `wait`, and what is waited for may go on to save."""

_LEAVE = """
[ ! -e "$CLOUDTRAIN_LOGS/stopping" ] || status=0
exit $status"""
"""The end of what srun starts. srun kills all others when one ends badly, and who was asked to stop may still save."""

AGENT = f"""\
{_BEGIN}
"$0" -m torch.distributed.run --node-rank "$SLURM_NODEID" "$@" {_to_files("launcher")} &{_WAIT}{_LEAVE}"""
"""For `bash -c` on each node: torchrun, told which node it is on. $0 is the interpreter."""

TORCH_RANK = f'exec "$0" "$@" {_to_files("rank_$RANK")}'
"""For `bash -c` in the place of a rank that torchrun starts."""

ALONE = f"""\
{_BEGIN}
number=$SLURM_PROCID
export CLOUDTRAIN_INSTANCE=$SLURM_NODEID CLOUDTRAIN_INSTANCE_COUNT=$SLURM_NNODES
unset SLURM_PROCID SLURM_LOCALID
"$0" "$@" {_to_files("rank_$number")} &{_WAIT}{_LEAVE}"""
"""For `bash -c` on each node: a process that knows nothing of the others."""

MPI_RANK = f"""\
{_BEGIN}
"$0" "$@" {_to_files("rank_${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}")} &
while kill -0 $! 2>/dev/null; do
  if [ -e "$CLOUDTRAIN_LOGS/stopping" ]; then kill -TERM $!; break; fi
  sleep 1
done{_WAIT}{_LEAVE}"""
"""For `bash -c` in the place of a rank of MPI: mpirun would kill its ranks a second after a SIGTERM, so that each looks
for itself whether it is to stop."""

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
"""For `bash -c` in the place of a task of TensorFlow. Servers serve for ever: they end when the chief has."""
