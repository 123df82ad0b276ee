"""The targets by name. A backend's module is imported when it is first used, so listing them costs nothing."""

from __future__ import annotations

BUILT_IN = {
    "local": "cloudtrain.backends.local.backend:LocalBackend",
    "sagemaker": "cloudtrain.backends.sagemaker.backend:SageMakerBackend",
    "azureml": "cloudtrain.backends.azureml.backend:AzureMLBackend",
}
"""Target name to `module:Class`. A new backend adds its row."""

ENTRY_POINTS = "cloudtrain.backends"
"""The entry-point group of other packages' backends. They add names; they cannot replace a built-in one."""
