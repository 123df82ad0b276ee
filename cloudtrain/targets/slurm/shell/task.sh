source begin.sh
source names.sh
number=$SLURM_PROCID rank=$SLURM_PROCID
unset SLURM_PROCID SLURM_LOCALID
if [ "$CLOUDTRAIN_SERVERS" = 0 ]; then kind=worker
elif [ "$number" = 0 ]; then kind=chief
elif [ "$number" -lt "$CLOUDTRAIN_WORKERS" ]; then kind=worker number=$((number - 1))
else kind=ps number=$((number - CLOUDTRAIN_WORKERS)); fi
task="{\"index\":$number,\"type\":\"$kind\"}"
export TF_CONFIG="{\"cluster\":$CLOUDTRAIN_CLUSTER,\"environment\":\"cloud\",\"task\":$task}"
"$0" "$@" >>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.rank_$rank.stdout.log" 2>>"$CLOUDTRAIN_LOGS/node_${SLURM_NODEID:-0}.rank_$rank.stderr.log" &
while [ $kind != chief ] && [ "$CLOUDTRAIN_SERVERS" != 0 ] && kill -0 $! 2>/dev/null; do
  if [ -e "$CLOUDTRAIN_LOGS/chief_ended" ]; then kill -TERM $!; wait $!; exit 0; fi
  sleep 1
done
source wait.sh
[ $kind != chief ] || touch "$CLOUDTRAIN_LOGS/chief_ended"
source leave.sh
