"""The Azure ML backend: the life of a job over REST, with azure-core. The request is the plan's; nothing is added.

    backend.py      the backend: what a plan needs, which is nothing but this machine, and the way to the service
    account.py      the settings, from the target, the SDK's `config.json` and the defaults of `az`
    place.py        the middle of a run's reference: which workspace, with whose credentials
    plan.py         the compiled job, also in the words of the Azure ML SDK and command line (`export/`)
    clouds.py       the clouds of Azure and their hosts
    credentials.py  whose credentials, and whether there seem to be any
    client.py       requests to a workspace, repeated as the service asks
    versions.py     the versions of the APIs
    refusals.py     what Azure says when it says no, in our words
    ownership.py    whether a job of that name is ours
    assets.py       code and environments, by their content
    upload.py       the files of the code, to where the service says
    states.py       the provider's states, reasons, times
    money.py        on what a job runs, and what that costs
    failure.py      why it failed, in one line
    logs.py         every process's file, read on from where it stopped; lines.py: whose it is, and its lines
    blobs.py        storage, by whatever opens it; places.py: addresses of files
    download.py     what a job wrote; outputs.py: where that is
    online.py       checks that ask the workspace; quota.py: how much it may use; sizes.py: which machines it has
    service.py      the questions to Azure, method by method

Azure's packages are imported with the first question, never before.
"""
