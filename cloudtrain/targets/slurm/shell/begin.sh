trap : TERM
[ ! -e "$CLOUDTRAIN_LOGS/stopping" ] || exit 0
watch=
if [ "${OMPI_COMM_WORLD_LOCAL_RANK:-${SLURM_LOCALID:-0}}" = 0 ]; then
  "$CLOUDTRAIN_PYTHON" -m cloudtrain.runtime.machine_watch "${SLURM_NODEID:-0}" "$SLURM_NNODES" $CLOUDTRAIN_MACHINE </dev/null >/dev/null 2>&1 &
  watch=$!
fi
