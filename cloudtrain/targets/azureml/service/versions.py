"""The versions of Azure's APIs, one for each kind of object, as azure-ai-ml 1.35.2 sends them."""

from __future__ import annotations

WORKSPACE = "2024-10-01-preview"
DATASTORE = "2024-10-01-preview"
CODE = "2023-04-01"
ENVIRONMENT = "2023-04-01-preview"
COMPUTE = "2023-08-01-preview"
JOB = "2024-01-01-preview"
"""For reading and listing jobs."""
SUBMIT = "2025-01-01-preview"
"""For making a job. Older versions silently drop fields of a command job."""
SWEEP = "2024-01-01-preview"
"""For making a sweep job."""
CANCEL = "2023-04-01-preview"
HISTORY = "v1.0"
"""For the workspace's run history, which is separate from the resource manager."""
