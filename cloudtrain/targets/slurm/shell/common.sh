
umask 077
unset ${!SBATCH_*} ${!SQUEUE_*} ${!SACCT_*} ${!SCANCEL_*} ${!SINFO_*}
export SLURM_TIME_FORMAT=%s LC_ALL=C
