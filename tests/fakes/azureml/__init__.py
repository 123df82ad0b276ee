"""An Azure Machine Learning workspace of our own, over https on loopback: ARM, run history, blob store, sign-in.

The real `azure.ai.ml.MLClient` 1.35.2, azure-identity and azure-storage-blob talk to it with nothing but environment
variables (`FakeAzure.environ`). It keeps every request as it came and does nothing by itself: tests move jobs from
state to state, write logs and outputs, and order faults. How the service behaves where nobody measured it is modelled
after its documentation and its error reports; such places say so.

    server.py       the whole: which request is for whom, and how a process is led here
    endpoint.py     HTTP: requests are read, kept, perhaps spoiled, answered
    messages.py     requests, answers, refusals, routes
    certificate.py  a throw-away authority and the certificate that it signed
    identity.py     tokens: where they are got, and how they are looked at
    faults.py       what goes wrong, on demand
    job.py          one job and its thirteen states; jobs.py: those of the workspace
    assets.py       code, environments, data
    compute.py      clusters, sizes, usages, quotas
    datastores.py   datastores and their secrets
    history.py      run history: status, errors, where the logs are
    blobs.py        the blob store; account.py: whom it lets in; sas.py: signatures; containers.py: what it holds
    files.py        the logs and outputs that a job writes
    runner.py       really runs the code of jobs; processes.py: which processes, with which variables
"""

from tests.fakes.azureml.server import FakeAzure

__all__ = ["FakeAzure"]
