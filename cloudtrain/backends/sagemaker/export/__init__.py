"""A plan's request, turned back into a call of the SageMaker Python SDK: version 2's estimators, version 3's trainer.

    calls        the calls, as data; `build` makes the objects
    estimator    request -> the estimator of version 2 that sends exactly this request
    trainer      request -> the `ModelTrainer` of version 3
    python_code  the same calls as code to read and run

All but `build` are pure and need no SDK. `tests/parity` runs the real SDKs and compares what they send.
"""
