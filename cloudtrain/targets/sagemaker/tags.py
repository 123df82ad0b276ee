"""The tag by which a job on SageMaker is known to be ours."""

RUN_TAG = "cloudtrain:run"
"""Its key; the value is the run's name."""
