"""The life of a job on SageMaker through boto3.

    service.py          the questions to AWS, method by method
    clients.py          sessions, retries, and credentials that expire while a run is waited for
    provider_errors.py  what AWS says when it says no, in our words
    ownership.py        whether a job of that name is ours
    online.py           checks that ask the account
    upload.py           the bundle to S3, unless it is there
    states.py           the provider's states, reasons, times and money; failure.py: why it failed, in one line
    logs.py             CloudWatch: every stream, in order, from where it stopped
    lines.py            one event as lines; writers.py: which rank wrote them
    download.py         model, outputs, checkpoints and logs
    archive.py          what the service packed, unpacked without leaving the folder

boto3 is imported when the first client is made, never before.
"""
