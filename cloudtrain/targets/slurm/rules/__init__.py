"""Rules about Slurm jobs: `SL101`."""
