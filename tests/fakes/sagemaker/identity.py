"""STS, IAM and Service Quotas: who asks, which roles there are, and how much the account may use."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tests.fakes.sagemaker.faults import Refused
from tests.fakes.sagemaker.jobs import ACCOUNT

TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
    ],
}


@dataclass
class Identity:
    """One account: its roles with their trust policies, and its quotas by name."""

    account: str = ACCOUNT
    roles: dict[str, dict[str, Any]] = field(default_factory=lambda: {"SageMakerRole": TRUST})
    quotas: dict[str, float] = field(default_factory=dict)
    denied: set[str] = field(default_factory=set)
    """What the simulation of a role's policies does not allow: `ACTION RESOURCE`."""

    def query(self, operation: str, form: dict[str, str]) -> str:
        """The XML inside the answer of STS and IAM."""
        if operation == "GetCallerIdentity":
            return f"<Account>{self.account}</Account><UserId>AIDA</UserId><Arn>arn:aws:iam::{self.account}:user/ada</Arn>"
        if operation == "GetRole":
            return self._role(form["RoleName"])
        if operation == "SimulatePrincipalPolicy":
            action, arn = form["ActionNames.member.1"], form["ResourceArns.member.1"]
            decision = "implicitDeny" if f"{action} {arn}" in self.denied else "allowed"
            result = (
                f"<EvalActionName>{action}</EvalActionName><EvalDecision>{decision}</EvalDecision>"
            )
            return f"<IsTruncated>false</IsTruncated><EvaluationResults><member>{result}</member></EvaluationResults>"
        raise Refused("InvalidAction", f"the fake knows no {operation}")

    def quota_page(self, body: dict[str, Any]) -> dict[str, Any]:
        """ListServiceQuotas, two to a page."""
        start = int(body.get("NextToken", 0))
        items = [
            {
                "QuotaName": name,
                "Value": value,
                "QuotaCode": f"L-{number:08X}",
                "ServiceCode": body["ServiceCode"],
            }
            for number, (name, value) in enumerate(self.quotas.items())
        ]
        return {"Quotas": items[start : start + 2]} | (
            {"NextToken": str(start + 2)} if start + 2 < len(items) else {}
        )  # fmt: skip

    def _role(self, name: str) -> str:
        if name not in self.roles:
            raise Refused("NoSuchEntity", f"The role with name {name} cannot be found.", 404)
        policy = quote(json.dumps(self.roles[name]))
        return (
            f"<Role><Path>/</Path><RoleName>{name}</RoleName><RoleId>AROA</RoleId>"
            f"<Arn>arn:aws:iam::{self.account}:role/{name}</Arn><CreateDate>2026-01-01T00:00:00Z</CreateDate>"
            f"<AssumeRolePolicyDocument>{policy}</AssumeRolePolicyDocument></Role>"
        )
