"""The Azure Machine Learning target. The plan holds the complete request; cloudtrain sends it unchanged.

target.py       the target itself, the way to everything else
settings.py     the table `[azureml]`
account.py      the workspace: from the settings, the SDK's `config.json` and the defaults of `az` (az.py)
compile/        from a job to the body of a command job
launch/         from that body to the processes that will run on the instances
rules/          finds mistakes in a job before it costs money (AZ)
catalogue/      VM sizes and curated environments
emulate/        the same job on this machine, as the instances would run it
plan.py         the compiled job; export/: the same job for the Azure ML SDK and command line
account_ref.py  the middle of a run's reference: the workspace, and the credentials for it
outputs.py      where the results of a job are; blob_names.py: which files can be blobs
service/        REST with azure-core: upload, submit, status, logs, stop, download; imported when first used
"""
