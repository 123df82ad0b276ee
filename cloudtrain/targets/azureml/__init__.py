"""Azure Machine Learning. The request is the plan's; nothing is added on the way.

target.py       what the target is, and the way to all else
settings.py     the table `[azureml]`
account.py      the workspace: from the settings, the SDK's `config.json` and the defaults of `az` (az.py)
compile/        from a job to the body of a command job
launch/         from that body to what will really run on the instances, process by process
rules/          what is wrong with a job before it costs money (AZ)
catalogue/      VM sizes and curated environments
emulate/        the same job on this machine, as the instances would run it
plan.py         the compiled job; export/: the same in the words of the Azure ML SDK and command line
place.py        the middle of a run's reference: which workspace, with whose credentials
outputs.py      where the results of a job are; blob_names.py: which files can be blobs
service/        REST with azure-core: upload, submit, status, logs, stop, download. Imported with the first question
"""
