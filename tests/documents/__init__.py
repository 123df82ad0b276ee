"""Documents: YAML, TOML and JSON with the place of each value."""
