"""Plans against the real SageMaker SDKs. Runs in environments of its own: `python tools/run/parity.py`."""
