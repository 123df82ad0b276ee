"""A SageMaker of our own behind a real HTTP endpoint, with CloudWatch Logs, S3, STS, IAM and Service Quotas beside it.

It speaks what boto3 speaks (the JSON, query and REST-XML protocols of botocore 1.44), keeps every request as it came,
and does nothing by itself: tests move jobs from state to state, write log streams, and order faults. Set
`AWS_ENDPOINT_URL` to `FakeAws.url`.

    server.py     HTTP: which request is for whom, what is kept, what goes wrong
    faults.py     what goes wrong, on demand
    jobs.py       training and processing jobs, their states and tags
    logs.py       log groups, streams, pages and tokens
    s3.py         buckets and objects, in parts too
    identity.py   STS, IAM, Service Quotas
    runner.py     really runs the code of a job, for the contract suite
"""
