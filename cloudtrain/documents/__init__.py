"""Readers of structured texts that people write: YAML, TOML and JSON into data, with the position of every value.

    limits      the size limits of such a text
    reading     reading a file on disk, if it is a plain file of a sensible size
    document    data, positions, and the mistakes found before validation
    yaml_text, toml_text, json_text, scalars    the readers of the formats

They read job files, settings and the user's instance types.
"""
