"""Turn a plan's request back into the formats of Azure's own tools.

    words    converts a body field by field, and names fields that a tool cannot express
    job      body -> the job in the terms that its YAML and its Python objects share
    yaml_job the job as the YAML of `az ml job create`
    program  the job as calls of the SDK: `command(...)`, and the client that sends it
    quiet    silences the SDK's remarks about itself

This code is pure and needs no SDK: the plan makes the objects, or the code. `tests/parity` runs the real SDK and
compares what it sends.
"""
