"""The versions of Azure's APIs, one for each kind of thing: those that azure-ai-ml 1.35.2 sends."""

from __future__ import annotations

WORKSPACE = "2024-10-01-preview"
DATASTORE = "2024-10-01-preview"
CODE = "2023-04-01"
ENVIRONMENT = "2023-04-01-preview"
COMPUTE = "2023-08-01-preview"
JOB = "2024-01-01-preview"
"""Of a job that exists: to look at it, and to list."""
SUBMIT = "2025-01-01-preview"
"""Of a job that is made. Older ones drop fields of a command job without a word."""
SWEEP = "2024-01-01-preview"
"""Of a sweep job that is made."""
CANCEL = "2023-04-01-preview"
HISTORY = "v1.0"
"""Of the workspace's run history, which is not the resource manager's."""
