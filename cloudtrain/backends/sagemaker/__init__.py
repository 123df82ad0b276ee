"""The SageMaker backend: the life of a job through boto3. The request is the plan's; nothing is added on the way.

    account.py      what is known of the account without the network
    places.py       `profile@region`: where a run is
    clients.py      sessions, retries, and credentials that expire while a run is waited for
    refusals.py     what AWS says when it says no, in our words
    jobs.py         training and processing jobs: the same life under other names
    ownership.py    whether a job of that name is ours
    upload.py       the bundle to S3, unless it is there
    states.py       the provider's states, reasons, times and money
    failure.py      why it failed, in one line
    logs.py         CloudWatch: every stream, in order, from where it stopped
    lines.py        one event as lines, and which rank wrote them
    download.py     model, outputs, checkpoints and logs
    archive.py      what the service packed, unpacked without leaving the folder
    online.py       checks that ask the account
    service.py      the questions to AWS, method by method
    backend.py      the backend: what a plan needs, and the way to the service

boto3 is imported when the first client is made, never before.
"""
