"""Turn a plan's request back into a call of the SageMaker Python SDK: version 2's estimators, version 3's trainer.

    estimator    request -> the estimator of version 2 that sends exactly this request
    trainer      request -> the `ModelTrainer` of version 3

This code is pure and needs no SDK: the plan makes the objects, or the code. `tests/parity` runs the real SDKs and
compares what they send.
"""
