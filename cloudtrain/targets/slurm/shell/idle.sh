  # Each node has a file as long as its GPUs have been idle for the time that the job allows.
  {
    until set -- "$logs"/idle_*; [ -e "$1" ] && [ $# -ge "$SLURM_NNODES" ]; do sleep 10; done
    note idle
    touch "$run/stop"
    kill -TERM $$
  } >/dev/null 2>&1 &
