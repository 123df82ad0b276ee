#!/bin/bash -l
# @name@: a run of cloudtrain. It needs @bundle@

run=@run@
code="$run/code"
logs="$run/logs/${SLURM_RESTART_COUNT:-0}"
note() { printf '%s %s %s\n' "$(date +%s.%N)" "$SLURM_JOB_ID" "$*" >>"$run/journal"; }
hosts_of_job() { @hosts@; }

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
kill_steps() {
  for step in $(squeue --noheader --steps --jobs="$SLURM_JOB_ID" --format=%i); do
    [[ $step != *.[0-9]* ]] || scancel --signal=KILL "$step"
  done
}
end_processes() {
  [ -z "$told" ] || return 0
  told=interrupted
  [[ $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%L) =~ ^([0-9]+):[0-9]+$ ]] &&
    [ "${BASH_REMATCH[1]}" -le @minutes@ ] && told=timeout
  [ ! -e "$run/stop" ] || told=stopping
  note "$told"
  touch "$logs/stopping"
@signal@  { read -r -t @grace@ <> <(:); note killed; kill_steps; } >/dev/null 2>&1 &
  watchdog=$!
}
trap end_processes TERM

note started "${SLURM_RESTART_COUNT:-0}"

if [ ! -d "$code" ]; then
  new=$(mktemp -d "$run/code.XXXXXX") && tar -xzf @bundle@ -C "$new" && mv "$new" "$code" ||
    { note broken code; exit 1; }
fi
mkdir -p @written@ && cd "$code" || { note broken folders; exit 1; }
@setup@
@exports@
export CLOUDTRAIN_LOGS="$logs" CLOUDTRAIN_METRICS_DIR="$run/metrics"
export CLOUDTRAIN_PYTHON=@python@ CLOUDTRAIN_MACHINE="@processes@ @idle@"
export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"
share=$((SLURM_CPUS_ON_NODE / @processes@))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$((share > 1 ? share : 1))}"
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=@grace@
export SLURM_EXPORT_ENV=ALL SLURM_CPU_BIND=none
mapfile -t all < <(hosts_of_job)
head=${all[0]}
@names@port=$((20000 + (SLURM_JOB_ID * 7) % 10000))
@secrets@@before@
status=143
if [ -z "$told" ]; then
  @command@ &
  ranks=$!
@stopper@  [ ! -e "$run/stop" ] || end_processes
  wait "$ranks"
  status=$?
  while [ -n "$told" ] && kill -0 "$ranks" 2>/dev/null; do wait "$ranks"; status=$?; done
  [ "$status" = 0 ] || [ ! -s "$logs/failed" ] || status=$(cat "$logs/failed")
fi

trap '' TERM
if [ -z "$told" ] && [ -s "$logs/broken" ]; then note "broken $(cat "$logs/broken")"; exit 1; fi
[ -z "$told" ] || kill -KILL "$watchdog" 2>/dev/null
@again@case "$told" in
  "") note "ended $status"; exit "$status" ;;
  stopping) note stopped; trap - TERM; scancel "$SLURM_JOB_ID"; sleep 60 ;;  # so that Slurm calls it cancelled
  *) note "left $status" ;;
esac
exit 143
