for host in $CLOUDTRAIN_HOSTS; do
  known() { ! type -P getent >/dev/null || getent ahosts "$host" >/dev/null; }
  if ! known && sleep 2 && ! known; then
    said="the node ${SLURMD_NODENAME:-of the job} cannot resolve the host name \`$host\`: set \`rendezvous_host\` in [slurm] to an address of the first node"
    echo "cloudtrain: $said" >&2
    (set -C; echo "$said" >"$CLOUDTRAIN_LOGS/broken") 2>/dev/null
    exit 1
  fi
done
unset CLOUDTRAIN_HOSTS
