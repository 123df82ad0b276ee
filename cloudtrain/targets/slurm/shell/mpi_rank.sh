source begin.sh
"$0" "$@" >>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.rank_${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}.stdout.log" 2>>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.rank_${OMPI_COMM_WORLD_RANK:-$SLURM_PROCID}.stderr.log" &
while kill -0 $! 2>/dev/null; do
  if [ -e "$CLOUDTRAIN_LOGS/stopping" ]; then kill -TERM $!; break; fi
  sleep 1
done
source wait.sh
source leave.sh
