# Runs a command in the environment and the folder of a rank's process on this machine.
#   $1  what else the process has in its environment, as NAME=VALUE; empty for nothing
#   $2  the rank; empty for the lowest one
# The rest is the command; without one it is a shell. The variables are not printed, and stand in no command line.
mark=$1 number=${2:-[0-9]+}
shift 2
[ "$#" -gt 0 ] || set -- "${SHELL:-bash}"

has() { grep -qsz "$2" -e "$3" "/proc/$1/environ" 2>/dev/null; }

# Prints the rank's process: of several with the variable, that whose parent has it not. A command of an earlier `exec` is
# none. Any process may end while it is looked at.
find_process() {
  local found kept= pid parent
  found=$(grep -lszxE "$1=$2" /proc/[0-9]*/environ 2>/dev/null | tr -c '0-9\n' ' ')
  for pid in $found; do
    [ -z "$mark" ] || has "$pid" -xF "$mark" || continue
    [ "$1" != SLURM_PROCID ] || has "$pid" -E '^SLURM_STEP_ID=' || continue
    has "$pid" -E '^CLOUDTRAIN_RANK_PID=' || kept="$kept $pid "
  done
  for pid in $kept; do
    parent=$(sed -n 's/^PPid:[[:space:]]*//p' "/proc/$pid/status" 2>/dev/null)
    case "$kept" in *" $parent "*) continue ;; esac
    printf '%s %s\n' "$(tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n "s/^$1=//p")" "$pid"
  done | sort -n | sed -n '1s/.* //p'
}

process=$(find_process RANK "$number")
[ -n "$process" ] || process=$(find_process OMPI_COMM_WORLD_RANK "$number")
[ -n "$process" ] || process=$(find_process CLOUDTRAIN_INSTANCE "$number")
if [ -z "$process" ]; then
  process=$(find_process SLURM_PROCID "$number")
  # a shell of ours, whose first child is the program
  read -r child _ 2>/dev/null <"/proc/${process:-0}/task/${process:-0}/children" && process=$child
fi
[ -n "$process" ] || process=$(find_process SM_CURRENT_HOST '.*')
[ -n "$process" ] || process=$(find_process AZUREML_RUN_ID '.*')

if [ -n "$process" ] && [ -r "/proc/$process/environ" ]; then
  folder=$(readlink "/proc/$process/cwd")
  terminal=$TERM
  for name in $(compgen -e); do unset "$name" 2>/dev/null; done
  while IFS= read -r -d '' variable; do
    name=${variable%%=*}
    case "$name" in *[!A-Za-z0-9_]*|[0-9]*|"") continue ;; esac
    export "$name=${variable#*=}" 2>/dev/null
  done <"/proc/$process/environ"
  unset LD_PRELOAD LD_AUDIT BASH_ENV ENV PYTHONSTARTUP CLOUDTRAIN_METRICS_DIR CLOUDTRAIN_RUN_DIR CLOUDTRAIN_RUN_TOKEN
  [ -z "$terminal" ] || export TERM=$terminal
  cd -- "$folder" 2>/dev/null || printf 'cloudtrain: the folder of the rank is gone: %s\n' "$folder" >&2
else
  printf 'cloudtrain: no process of the rank can be read here, so the command gets neither its environment nor its folder\n' >&2
fi
export CLOUDTRAIN_RANK_PID=$process
exec "$@"
