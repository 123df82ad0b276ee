"""The targets. Each target has its own folder. `base.py` declares the interface, and `registry.py` finds targets by
name."""
