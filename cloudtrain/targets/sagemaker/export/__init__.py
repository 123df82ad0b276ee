"""Turn a plan's request back into a call of the SageMaker Python SDK: version 2's estimators, version 3's trainer.

    estimator    request -> the estimator of version 2 that sends exactly this request
    trainer      request -> the `ModelTrainer` of version 3

These modules do not import the SDKs. They describe SDK calls, which the plan turns into objects or code. `tests/parity`
runs the real SDKs and compares the requests that they send.
"""
