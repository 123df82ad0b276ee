"""The rules for every target, with codes that begin with `CT`."""
