"""Slurm: a job becomes one batch job, which starts its ranks with `srun` or `mpirun` inside its allocation.

settings.py     the table `[slurm]`: partition, login node, shared folder, container
account.py      where runs are; references of runs hold it too
layout.py       the folder of a run on the shared file system, and the names in it
plan.py         the compiled job; `--format sbatch`
target.py       what the rest of cloudtrain sees
compile/        the job to sbatch's options and the batch script; pure
rules/          SL: findings before anything is sent
service/        talks to the cluster: shell scripts, run here or on the login node
"""
