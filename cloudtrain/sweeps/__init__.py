"""Sweeps: many runs of one job that are planned, driven, watched, stopped and continued together.

planning.py    compiles a sweep to a plan: the request to a service's tuner, or the input of cloudtrain's driver
strategies.py  chooses the values of the next trial
stopping.py    decides whether a trial is clearly worse than the others
study.py       the journal of a sweep: which trials were chosen, submitted and ended
driver.py      the detached process that submits each trial as a job and reads its metrics
service.py     the sweeps that this machine drives, as a `Service`
sweep_run.py   a sweep as a run: its trials, the best trial, plots
"""
