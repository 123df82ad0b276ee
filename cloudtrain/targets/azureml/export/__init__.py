"""A plan's request, turned back into the words of Azure's own tools.

    words    reading a body field by field: converters, and what there is no word for
    job      body -> the job in the words that its YAML and its Python objects share
    yaml_job the job as the YAML of `az ml job create`
    program  the job as calls of the SDK: `command(...)`, and the client that sends it
    quiet    the SDK without its remarks about itself

All is pure and needs no SDK: the plan makes the objects, or the code. `tests/parity` runs the real SDK and
compares what it sends.
"""
