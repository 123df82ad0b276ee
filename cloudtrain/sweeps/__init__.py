"""Sweeps: many runs of one job that are planned, driven, watched, stopped and continued together.

planning.py    a sweep and the user's surroundings into a plan: the request of a service's tuner, or of our driver
strategies.py  the values of the next trial
stopping.py    whether a trial is clearly worse than the others
study.py       the journal of a sweep: what was asked, submitted and told
driver.py      the detached process that starts trials, one job each, and reads what they report
service.py     the sweeps of this machine, as a `Service`
sweep_run.py   a sweep as a run: its trials, the best one, pictures
"""
