"""The life of a job on Azure ML over REST, with azure-core.

    service.py          the requests to Azure, method by method
    clouds.py           the clouds of Azure and their hosts
    credentials.py      the credentials, and whether this machine seems to have any
    client.py           requests to a workspace, repeated as the service asks; versions.py: the versions of the APIs
    provider_errors.py  Azure's errors, in our words
    ownership.py        finds out whether we made a job of a given name
    online.py           checks that ask the workspace; quota.py: its quota; sizes.py: its machines
    assets.py           code and environments, by their content
    upload.py           the files of the code, to the service's storage; transfers.py: several at once
    states.py           the provider's states, reasons, times; money.py: the machines of a job, and their cost
    failure.py          why a job failed, in one line
    logs.py             every process's file, continued from where it stopped; lines.py: its writer, and its lines
    blobs.py            storage, and the keys for it; places.py: addresses of files
    download.py         what a job wrote; outputs.py: its location in the service

Azure's packages are imported when first used.
"""
