"""The life of a job on Azure ML over REST, with azure-core.

    service.py          the operations on jobs, such as submit, status and stop
    clouds.py           the clouds of Azure and their hosts
    credentials.py      gets credentials, and finds out whether this machine seems to have any
    client.py           sends and repeats requests to a workspace
    versions.py         the versions of the APIs
    provider_errors.py  translates Azure's errors to cloudtrain's errors
    ownership.py        finds out whether cloudtrain created a job
    online.py           checks that ask the workspace
    quota.py            checks of the quota
    sizes.py            the workspace's instance types
    assets.py           code and environments, named by a hash of their content
    upload.py           uploads the code's files to the service's storage
    states.py           the states, reasons and times of a job
    money.py            a job's machines, and their cost
    failure.py          why a job failed, in one line
    logs.py             reads the log file of every process
    lines.py            the rank of a log file, and its lines
    blobs.py            blob storage and its keys
    places.py           addresses of files
    download.py         copies a job's results
    outputs.py          looks up where the service stored the results

Azure's packages are imported when first used.
"""
