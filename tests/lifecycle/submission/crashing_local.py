"""Submits jobs to this machine in forks that die; see `forking.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import cloudtrain.cli.commands.submit
import cloudtrain.lifecycle.submission.once
from cloudtrain.targets.local import target as backend
from tests.lifecycle.submission.forking import serve, submit_by_command

assert cloudtrain.cli.commands.submit
assert cloudtrain.lifecycle.submission.once
assert backend
serve(submit_by_command)
