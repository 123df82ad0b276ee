"""The tag that marks a SageMaker job as created by cloudtrain."""

RUN_TAG = "cloudtrain:run"
"""The tag's key; its value is the run's name."""
