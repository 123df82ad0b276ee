# Ranks notice that a node is lost before Slurm does: then the job starts again, as it would if Slurm had noticed.
every_node_answers() {
  timeout 60 srun --overlap --ntasks="$SLURM_NNODES" --ntasks-per-node=1 --input=none true >/dev/null 2>&1
}
if [ -z "$told" ] && [ "$status" != 0 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 5 ] && ! every_node_answers; then
  note "left $status"
  trap - TERM
  scontrol requeue "$SLURM_JOB_ID" && sleep 60
fi
