source begin.sh
number=$SLURM_PROCID
export CLOUDTRAIN_INSTANCE=$SLURM_NODEID CLOUDTRAIN_INSTANCE_COUNT=$SLURM_NNODES
unset SLURM_PROCID SLURM_LOCALID
"$0" "$@" >>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.rank_$number.stdout.log" 2>>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.rank_$number.stderr.log" &
source wait.sh
source leave.sh
