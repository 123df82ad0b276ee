"""Readers that convert YAML, TOML and JSON to data with the position of every value.

    limits      the size limits of a text
    reading     reads a file if it is a plain file within the size limit
    document    data, positions, and the mistakes found before validation
    yaml_text, toml_text, json_text, scalars    the readers of the formats

cloudtrain reads job files, settings and the user's instance types with them.
"""
