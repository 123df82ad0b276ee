"""The life of a job on Azure ML over REST, with azure-core.

    service.py          the questions to Azure, method by method
    clouds.py           the clouds of Azure and their hosts
    credentials.py      whose credentials, and whether there seem to be any
    client.py           requests to a workspace, repeated as the service asks; versions.py: those of the APIs
    provider_errors.py  what Azure says when it says no, in our words
    ownership.py        whether a job of that name is ours
    online.py           checks that ask the workspace; quota.py: how much it may use; sizes.py: which machines it has
    assets.py           code and environments, by their content
    upload.py           the files of the code, to where the service says; transfers.py: several at once
    states.py           the provider's states, reasons, times; money.py: on what a job runs, and what that costs
    failure.py          why it failed, in one line
    logs.py             every process's file, read on from where it stopped; lines.py: whose it is, and its lines
    blobs.py            storage, by whatever opens it; places.py: addresses of files
    download.py         what a job wrote; outputs.py: where the service has put it

Azure's packages are imported with the first question, never before.
"""
