"""Amazon SageMaker. The request is the plan's; nothing is added on the way.

target.py       what the target is, and the way to all else
settings.py     the table `[sagemaker]`; account.py: what is known of the account without the network
compile/        from a job to the body of CreateTrainingJob or CreateProcessingJob
launch/         from that body to what will really run in the containers, process by process
rules/          what is wrong with a job before it costs money (SM)
catalogue/      images, instance types, and the limits of a request
emulate/        the same job on this machine, as the containers would run it
plan.py         the compiled job; export/: the same in the words of the SageMaker SDK
jobs.py         training and processing jobs: the same life under other names
places.py       where a run is, and S3 addresses; outputs.py: where its results are
service/        boto3: upload, submit, status, logs, stop, download. Imported with the first question
"""
