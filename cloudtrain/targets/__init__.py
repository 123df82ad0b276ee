"""The targets: one folder each. `base.py` declares what every target provides, `registry.py` finds targets by name."""
