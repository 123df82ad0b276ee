"""The targets: one folder each. `base.py` says what one promises, `registry.py` finds them by name."""
