"""Moved to `cloudtrain.plans`: a module must not have the name of a public function (`ct.plan`). Goes away soon."""

from cloudtrain.plans import *  # noqa: F403
from cloudtrain.plans import Bundle as Bundle
from cloudtrain.plans import Finding as Finding
from cloudtrain.plans import Level as Level
from cloudtrain.plans import Plan as Plan
