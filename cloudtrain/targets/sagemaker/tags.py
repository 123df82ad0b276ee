"""The tag that marks a SageMaker job as ours."""

RUN_TAG = "cloudtrain:run"
"""The tag's key; its value is the run's name."""
