"""Start, watch and end runs on this machine.

    client side     service.py        submits runs, and reads their status and files from the run's folder
                    reading.py        reads the journal of output from a byte offset on
                    work.py           finds the files that the script wrote into its working folder
                    withdraw.py       withdraws a run whose submitter died before a supervisor took over
    both sides      folder.py         reads and writes the files of a run's folder, such as its status
                    own_processes.py  cloudtrain's own Python processes: isolated, and without site-packages
                    lost.py           finishes a run whose supervisor died
    the run         supervisor.py     one process per run: prepares, starts, watches and ends it
                    prepare.py        finds free ports, fills in placeholders, makes folders, unpacks the code
                    launched.py       starts processes and sends them signals
                    ranks.py          finds the rank of each process, and the order in which ranks end
                    failures.py       collects failed ranks; verdict.py describes the cause in one line
                    summaries.py      reads what torchrun and mpirun report about failed ranks
                    output.py         follows the files that processes write to, into one journal
                    sources.py        finds these files; lines.py splits their bytes into lines;
                                      `cloudtrain.system.patterns` finds the job's metrics in the lines
                    guard.py          kills the run's processes if the supervisor is killed
                    killing.py        kills every process of a run
                    proc.py           reads the process table: from /proc, or with psutil where /proc is missing

The supervisor and the guard use the standard library only, so that they start in milliseconds and leave the memory to
the training processes. This module imports nothing for the same reason.
"""
