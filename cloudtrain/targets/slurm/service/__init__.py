"""Talks to the cluster through shell scripts that run here, or on the login node through ssh.

runner.py       runs a script there
scripts.py      the scripts
states.py       Slurm's states and their meaning
records.py      the scripts' answers: a run's journal and Slurm's data about its job
status.py       from a record to a status; why a run failed
submission.py   exactly one job for a run
ssh.py          the command line of ssh
upload.py  logs.py  download.py  online.py  instances.py
service.py      the service, put together
"""
