"""The Amazon SageMaker target. The plan holds the complete request; cloudtrain sends it unchanged.

target.py       the target itself, the way to everything else
settings.py     the table `[sagemaker]`; account.py: the account settings, read without the network
compile/        from a job to the body of CreateTrainingJob or CreateProcessingJob
launch/         from that body to the processes that will run in the containers
rules/          finds mistakes in a job before it costs money (SM)
catalogue/      images, instance types, and the limits of a request
emulate/        the same job on this machine, as the containers would run it
plan.py         the compiled job; export/: the same job as calls of the SageMaker SDK
jobs.py         names of operations and fields, for training jobs and for processing jobs
account_ref.py  where a run is; s3_uri.py: S3 addresses; outputs.py: where the results of a run are
service/        boto3: upload, submit, status, logs, stop, download; imported when first used
"""
