"""A plan for Azure ML, which can also be had as an object, as YAML or as code of Azure's own tools."""

from __future__ import annotations

from dataclasses import fields

from cloudtrain.plans import Plan


class AzureMLPlan(Plan):
    """The compiled job. `request` is the body of the job's PUT; all else here is made from it."""

    @classmethod
    def of(cls, plan: Plan) -> AzureMLPlan:
        """A compiled plan that knows Azure's own words."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(Plan)})
