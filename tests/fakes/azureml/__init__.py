"""An Azure Machine Learning workspace of our own, over https on loopback: ARM, run history, blob store, sign-in.

The real `azure.ai.ml.MLClient` 1.35.2, azure-identity and azure-storage-blob talk to it with nothing but environment
variables (`FakeAzure.environ`). It keeps every request as it came and does nothing by itself: tests move jobs from
state to state, write logs and outputs, and order faults. How the service behaves where nobody measured it is modelled
after its documentation and its error reports; such places say so.

    server.py       https: which request is for whom, what is kept, what goes wrong
    messages.py     requests, answers, refusals, routes
    certificate.py  a throw-away authority and the certificate that it signed
    identity.py     tokens: where they are got, and how they are looked at
    faults.py       what goes wrong, on demand
    jobs.py         jobs, their thirteen states, their lists
    assets.py       code, environments, data
    compute.py      clusters, sizes, usages, quotas
    datastores.py   datastores and their secrets
    history.py      run history: status, errors, where the logs are
    blobs.py        the blob store; sas.py: its signatures
    files.py        the logs and outputs that a job writes
"""

from tests.fakes.azureml.server import FakeAzure

__all__ = ["FakeAzure"]
