source begin.sh
source names.sh
"$0" -m torch.distributed.run --node-rank "$SLURM_NODEID" "$@" >>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.launcher.stdout.log" 2>>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.launcher.stderr.log" &
source wait.sh
source leave.sh
