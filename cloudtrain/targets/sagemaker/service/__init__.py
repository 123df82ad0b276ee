"""Submit, follow, stop and download runs on SageMaker through boto3.

    service.py          the requests to AWS, method by method
    clients.py          sessions, retries, and credentials that expire while cloudtrain waits for a run
    provider_errors.py  turns AWS's errors into cloudtrain's
    ownership.py        checks whether cloudtrain created a job with a given name
    online.py           checks that send requests to the account
    upload.py           uploads bundle and data to S3 unless they exist
    states.py           a job's state, times and cost; failure.py: the reason for a failure, in one line
    logs.py             reads all CloudWatch streams of a job in order
    lines.py            splits an event into lines; writers.py: the ranks of each instance
    download.py         model, outputs, checkpoints and logs
    archive.py          unpacks the service's archives safely

boto3 is imported when the first client is made.
"""
