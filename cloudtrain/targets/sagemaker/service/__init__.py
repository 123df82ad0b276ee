"""The life of a job on SageMaker through boto3.

    service.py          the requests to AWS, method by method
    clients.py          sessions, retries, and credentials that expire while cloudtrain waits for a run
    provider_errors.py  AWS's errors, in our words
    ownership.py        finds out whether we made a job of a given name
    online.py           checks that ask the account
    upload.py           the bundle to S3, if it is not there yet
    states.py           the provider's states, reasons, times and money; failure.py: why it failed, in one line
    logs.py             CloudWatch: every stream, in order, from where it stopped
    lines.py            one event as lines; writers.py: which rank wrote them
    download.py         model, outputs, checkpoints and logs
    archive.py          unpacks the service's archives without leaving the folder

boto3 is imported when the first client is made.
"""
