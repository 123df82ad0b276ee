"""The Amazon SageMaker target. The plan holds the complete request; cloudtrain sends it unchanged.

target.py       the target itself, which calls all other modules
settings.py     the table `[sagemaker]`; account.py: the account settings, read without the network
compile/        turns a job into the body of CreateTrainingJob or CreateProcessingJob
launch/         computes from this body the processes that will run in the containers
rules/          checks a job before it is submitted; codes such as `SM305`
catalogue/      images, instance types, and the limits of each request field
emulate/        the same job on this machine, as the containers would run it
plan.py         the compiled job; export/: the same job as calls of the SageMaker SDK
jobs.py         the API's operations and field names for training jobs and processing jobs
account_ref.py  a run's region and profile; s3_uri.py: S3 addresses; outputs.py: locations of a run's results
service/        boto3: upload, submit, status, logs, stop, download; imported when first used
"""
