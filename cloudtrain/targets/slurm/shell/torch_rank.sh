exec "$0" "$@" >>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.rank_$RANK.stdout.log" 2>>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.rank_$RANK.stderr.log"
