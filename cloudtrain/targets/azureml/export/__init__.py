"""Turn a plan's request back into the formats of Azure's own tools.

    words    converts a body field by field, and names fields that a tool cannot express
    job      converts the body to the fields that the SDK's YAML and Python objects share
    yaml_job the job as the YAML of `az ml job create`
    program  the job as calls of the SDK: `command(...)`, and the client that sends it
    quiet    silences the SDK's warnings about its experimental classes

This code is pure and needs no SDK; `AzureMLPlan` makes the SDK's objects from its results. `tests/parity` runs
the real SDK and compares its requests.
"""
