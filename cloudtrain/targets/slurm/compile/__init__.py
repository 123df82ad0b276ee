"""Compile a job to the options of sbatch and the batch script. Pure: no network, no clock, no environment."""
