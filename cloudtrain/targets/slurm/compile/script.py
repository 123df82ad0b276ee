"""The batch script, which runs on the first node of the job.

The script is self-contained, so you can also save it to a file and submit it with `sbatch FILE`. A restarted job runs
the script again with a higher restart count. Its processes continue from their checkpoint.
"""

from __future__ import annotations

from shlex import quote

from cloudtrain.targets.slurm.compile.cluster_run import ClusterRun, is_mpi
from cloudtrain.targets.slurm.compile.launchers import Launch
from cloudtrain.targets.slurm.compile.snippets import quote_word

_BEGIN = """\
#!/bin/bash -l
# {name}: a run of cloudtrain. It needs {bundle}

run={run}
code="$run/code"
logs="$run/logs/${{SLURM_RESTART_COUNT:-0}}"
note() {{ printf '%s %s %s\\n' "$(date +%s.%N)" "$SLURM_JOB_ID" "$*" >>"$run/journal"; }}
hosts_of_job() {{ {hosts}; }}

# One job has the run: the first one to take this link.
mkdir -p "$run" "$logs" || exit 1
ln -sn "$SLURM_JOB_ID" "$run/job" 2>/dev/null
if [ "$(readlink "$run/job")" != "$SLURM_JOB_ID" ]; then
  echo "cloudtrain: another job has this run, or it was withdrawn: $(readlink "$run/job")" >&2
  exit 1
fi
if [ -e "$run/stop" ]; then note stopped; exit 143; fi
# SIGTERM is for the processes: they save and leave, and those that stay are killed.
told=
kill_steps() {{
  for step in $(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i); do
    [[ $step != *.[0-9]* ]] || scancel --signal=KILL "$step"
  done
}}
end_processes() {{
  [ -z "$told" ] || return 0
  told=interrupted
  [[ $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%L) =~ ^([0-9]+):[0-9]+$ ]] &&
    [ "${{BASH_REMATCH[1]}}" -le {minutes} ] && told=timeout
  [ ! -e "$run/stop" ] || told=stopping
  note "$told"
  touch "$logs/stopping"
{signal}  {{ read -r -t {grace} <> <(:); note killed; kill_steps; }} >/dev/null 2>&1 &
  watchdog=$!
}}
trap end_processes TERM

note started "${{SLURM_RESTART_COUNT:-0}}"

if [ ! -d "$code" ]; then
  new=$(mktemp -d "$run/code.XXXXXX") && tar -xzf {bundle} -C "$new" && mv "$new" "$code" ||
    {{ note broken code; exit 1; }}
fi
mkdir -p {written} && cd "$code" || {{ note broken folders; exit 1; }}
"""

_SETUP = """
# The settings' own lines. If one of them ends the script, no rank has run, and that is no success.
trap 'note broken setup; exit 1' EXIT
{lines}
set +eu
[[ "$(trap -p EXIT)" != *"note broken setup"* ]] || trap - EXIT
cd "$code" || exit 1
"""

_VARIABLES = """
{exports}
export CLOUDTRAIN_LOGS="$logs"
export PYTHONPATH="$code${{PYTHONPATH:+:$PYTHONPATH}}"
share=$((SLURM_CPUS_ON_NODE / {processes}))
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-$((share > 1 ? share : 1))}}"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={grace}
export SLURM_EXPORT_ENV=ALL SLURM_CPU_BIND=none
mapfile -t all < <(hosts_of_job)
head=${{all[0]}}
port=$((20000 + (SLURM_JOB_ID * 7) % 10000))
"""

_SECRETS = """
# The values of the job's secrets are read here, and stand in no file.
secrets=$({python} -m cloudtrain.runtime.secret_values 2>"$logs/secrets") ||
  {{ note broken "$(sed -n 's/^error: //p' "$logs/secrets")"; cat "$logs/secrets" >&2; exit 1; }}
eval "$secrets"
unset secrets
rm -f "$logs/secrets"
"""

_END = """
status=143
if [ -z "$told" ]; then
  {command} &
  ranks=$!
  [ ! -e "$run/stop" ] || end_processes
  wait "$ranks"
  status=$?
  while [ -n "$told" ] && kill -0 "$ranks" 2>/dev/null; do wait "$ranks"; status=$?; done
  [ "$status" = 0 ] || [ ! -s "$logs/failed" ] || status=$(cat "$logs/failed")
fi

trap '' TERM
[ -z "$told" ] || kill -KILL "$watchdog" 2>/dev/null
{again}case "$told" in
  "") note "ended $status"; exit "$status" ;;
  stopping) note stopped; trap - TERM; scancel "$SLURM_JOB_ID"; sleep 60 ;;  # so that Slurm calls it cancelled
  *) note "left $status" ;;
esac
exit 143
"""

_AGAIN = """\
# Ranks notice that a node is lost before Slurm does: then the job starts again, as it would if Slurm had noticed.
every_node_answers() {
  timeout 60 srun --overlap --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --input=none true >/dev/null 2>&1
}
if [ -z "$told" ] && [ "$status" != 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ] && ! every_node_answers; then
  note "left $status"
  trap - TERM
  scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
"""

_SIGNAL = '  scancel --signal=TERM "$SLURM_JOB_ID"\n'
"""The command that sends SIGTERM to every process of the job except the batch script."""


def batch_script(run: ClusterRun, launch: Launch) -> str:
    """Return the text of the batch script."""
    settings, grace = run.settings, run.settings.grace_period
    text = _BEGIN.format(
        name=run.context.run_name,
        run=quote(run.folder.path),
        bundle=quote(run.bundle),
        hosts=_hosts(settings.rendezvous_host),
        signal="" if is_mpi(run.job) else _SIGNAL,
        grace=grace,
        minutes=grace // 60 + 1,
        written=" ".join(map(quote, run.output_folders)),
    )
    if settings.setup:
        text += _SETUP.format(lines="\n".join(settings.setup).replace("\r", ""))
    exports = "\n".join(f"export {name}={quote_word(value)}" for name, value in run.variables.items())
    text += _VARIABLES.format(exports=exports, processes=run.processes, grace=grace)
    if run.job.environment.secrets:
        text += _SECRETS.format(python="python3" if run.image else quote(settings.python))
    text += "".join(f"{line}\n" for line in launch.before)
    again = _AGAIN if settings.requeue or run.job.spot else ""
    return text + _END.format(command=launch.command, again=again)


def _hosts(override: str | None) -> str:
    """Return a shell command that prints a line for each node of the job: its host name, or `override` if not None."""
    command = 'scontrol show hostnames "$SLURM_JOB_NODELIST"'
    return command if override is None else f"{command} | while read -r _; do echo {quote(override)}; done"
