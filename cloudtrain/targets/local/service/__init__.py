"""The life of a run on this machine.

    client side     service.py        submit, status, logs, stop, runs, download: through the run's folder
                    reading.py        the journal of output, from a byte offset on
                    work.py           what the script wrote beside its code
                    withdraw.py       a run whose submitter died before a supervisor took over
    both sides      folder.py         the files of a run folder, and the status that is kept there
                    own_processes.py  our own Python processes: isolated, and without site-packages
                    lost.py           what is left to do for a run whose supervisor died
    the run         supervisor.py     one per run: prepare, start, watch, end
                    prepare.py        free ports, placeholders, folders, the unpacked code
                    launched.py       the processes that the supervisor starts, and their signals
                    ranks.py          which process is which rank, and in which order they end
                    failures.py       which ranks ended badly; verdict.py: whose fault it was, in one line
                    summaries.py      what torchrun and mpirun say about it
                    output.py         the files that processes write to, followed into one journal
                    sources.py        which files these are; lines.py: bytes to lines; what the job's metrics
                                      find in them: `cloudtrain.system.patterns`
                    guard.py          outlives a killed supervisor just long enough to kill its processes
                    killing.py        kill every process of a run
                    proc.py           the process table: /proc, or psutil where there is none

The supervisor and the guard use the standard library only, so that they start in milliseconds and leave the memory to
the training processes. This module imports nothing for the same reason.
"""
