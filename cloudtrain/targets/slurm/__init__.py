"""Slurm: cloudtrain submits a job as one batch job, whose script starts the ranks with `srun` or `mpirun`.

settings.py     the table `[slurm]`: partition, login node, shared folder, container
account.py      the login node and the shared folder of runs
layout.py       the paths of files and folders on the shared file system
plan.py         the compiled job; `--format sbatch`
target.py       the target class, which the rest of cloudtrain uses
compile/        compiles the job to sbatch's options and the batch script; pure
rules/          the rules SL..., which check a job before it is sent
service/        talks to the cluster: shell scripts, run here or on the login node
"""
