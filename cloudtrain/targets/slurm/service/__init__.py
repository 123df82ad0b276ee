"""Talks to the cluster through shell scripts that run on this machine, or on the login node through ssh.

runner.py       runs a script on the machine that has Slurm's commands
scripts.py      the scripts
states.py       Slurm's states and their meaning
records.py      parses the scripts' answers: a run's journal and Slurm's data about its job
status.py       derives a run's status, and the reason for a failure, from its record
submission.py   submits exactly one job for each run
ssh.py          the command line of ssh
upload.py  logs.py  download.py  online.py  instances.py
service.py      the service, which uses these modules
"""
