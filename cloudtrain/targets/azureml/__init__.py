"""The Azure Machine Learning target. The plan holds the complete request; cloudtrain sends it unchanged.

target.py       the target: the entry point to all other modules
settings.py     the table `[azureml]`
account.py      the workspace: from the settings, the SDK's `config.json` and the defaults of `az` (az.py)
compile/        compiles a job into the body of a command job
launch/         derives from the body the processes that will run on the instances
rules/          find mistakes in a job before it costs money (codes AZ...)
catalogue/      VM sizes and curated environments
emulate/        the same job on this machine, as the instances would run it
plan.py         the compiled job; export/: the same job for the Azure ML SDK and command line
account_ref.py  the account part of a run's reference: the workspace and the kind of credential
outputs.py      the addresses of a job's results; blob_names.py: whether files can be blobs
service/        REST with azure-core: upload, submit, status, logs, stop, download; imported when first used
"""
