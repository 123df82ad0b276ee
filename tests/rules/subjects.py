"""The subject of the rules, made of a plan."""

from __future__ import annotations

from typing import Any

from cloudtrain.code.tree import Tree
from cloudtrain.job.processing import ProcessingJob
from cloudtrain.job.training import TrainingJob
from cloudtrain.plans.plan import Plan
from cloudtrain.rules.engine import Subject
from cloudtrain.targets.registry import target_of
from cloudtrain.targets.settings import TargetSettings


def subject_of(
    job: TrainingJob,
    settings: TargetSettings,
    account: Any,
    plan: Plan,
    tree: Tree,
    processing: ProcessingJob | None = None,
) -> Subject:
    """A job on a target, with its plan and its files."""
    target = target_of(settings.type)
    return Subject(target.read(job, settings, account, plan, processing), target, settings, tree)
