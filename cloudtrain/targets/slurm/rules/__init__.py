"""Rules about Slurm jobs, with codes such as `SL101`."""
