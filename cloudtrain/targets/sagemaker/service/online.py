"""Checks that send requests to the account. They change nothing, and a missing permission only
causes a warning."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from cloudtrain.errors import (
    CloudtrainError,
    MissingExtra,
    TargetError,
    TargetUnreachable,
)
from cloudtrain.machines.overlay import Refreshed, write_refreshed
from cloudtrain.machines.table import instance_named
from cloudtrain.plans.plan import Finding, Plan
from cloudtrain.rules.engine import ValuePath, declare_all, finding_of
from cloudtrain.runtime.secret_values import references
from cloudtrain.system.plugins import require
from cloudtrain.targets.common.services import Deadline, Denied, NotThere, check_timeout
from cloudtrain.targets.sagemaker.plan import S3Uri
from cloudtrain.targets.sagemaker.request import JsonMapping
from cloudtrain.targets.sagemaker.service.clients import Clients
from cloudtrain.targets.sagemaker.settings import ASKED, account_id

_SERVICE = "sagemaker.amazonaws.com"


@dataclass(frozen=True)
class CheckContext:
    """The input of each check: the plan, and clients for the account."""

    clients: Clients
    plan: Plan
    region: str
    account: str
    """The account of the credentials."""


Check = Callable[[CheckContext], Iterator[Finding]]


def check(clients: Clients, plan: Plan) -> list[Finding]:
    """Check a plan against the account, and return the findings.

    The first request tests the credentials. If it fails, the result is one finding. Otherwise the
    checks run in parallel.
    """
    require("boto3", extra="sagemaker")  # import it before the deadline starts
    deadline: Deadline[Any] = Deadline(check_timeout())
    try:
        answers = deadline.answers([lambda: clients.call("sts", "get_caller_identity")])
    except TargetUnreachable as error:
        message = f"the account could not be asked about {ASKED}: {error.message}"
        return [finding_of("SM902", message, error.hint)]
    except MissingExtra:
        raise  # `--ignore` cannot help here
    except CloudtrainError as error:
        return [finding_of("SM901", error.message, error.hint)]
    findings: list[Finding] = []
    late = [ASKED]
    if answers:
        account = answers[0]["Account"]
        context = CheckContext(clients, plan, clients.region() or "", account)
        checks = _checks(plan)
        questions = [partial(_run_check, about, one, context) for about, one in checks.items()]
        results = dict(deadline.answers(questions))
        for result in results.values():
            findings += result
        late = [about for about in checks if about not in results]

    if late:
        asked = f"AWS gave no answer about {', '.join(late)} within {deadline.seconds:g} s"
        hint = (
            "the job may still be right: `--offline` asks nothing, CLOUDTRAIN_CHECK_TIMEOUT=30 "
            "waits longer"
        )
        message = f"not everything could be looked at: {asked}"
        findings.append(finding_of("SM902", message, hint))
    return findings


def _checks(plan: Plan) -> dict[str, Check]:
    """Map what each check is about to its function, so that all checks can run in parallel."""
    checks: dict[str, Check] = {"the role": _role, "the quota": _quota}
    secrets = references(plan.request.get("Environment", {}))
    for name, place in secrets.items():
        checks[f"the secret `{name}`"] = partial(_secret, name, place)
    for bucket, path in _buckets(plan).items():
        checks[f"the bucket `{bucket}`"] = partial(_bucket, bucket, path)

    data = [upload for upload in plan.uploads if upload.kind == "data"]
    folders = tuple(f"{upload.destination}/" for upload in data)
    for name, uri in _inputs(plan.request):
        is_uploaded = f"{uri}/".startswith(folders)  # only by the submit, so it is not there yet
        if not is_uploaded and name != "code":
            path = ("inputs", name, "sagemaker")
            checks[f"the input `{name}`"] = partial(_input, uri, path)
    return checks


def _inputs(request: JsonMapping) -> Iterator[tuple[str, str]]:
    """Yield the name and S3 address of each input that the job reads from S3."""
    for item in request.get("InputDataConfig", ()):
        place = item.get("DataSource", {}).get("S3DataSource")
        if place and place.get("S3Uri"):
            yield item["ChannelName"], place["S3Uri"]
    for item in request.get("ProcessingInputs", ()):
        place = item.get("S3Input")
        if place and place.get("S3Uri"):
            yield item["InputName"], place["S3Uri"]


def _run_check(about: str, one: Check, context: CheckContext) -> tuple[str, list[Finding]]:
    """Return what one check is about, and its findings, or one warning if it failed."""
    try:
        return about, list(one(context))
    except TargetError as error:
        message = error.message
        if isinstance(error, Denied | TargetUnreachable):
            message = f"AWS could not be asked about {about}: {message}"
        return about, [finding_of("SM902", message, error.hint)]


def _role(context: CheckContext) -> Iterator[Finding]:
    """Check that the role exists in this account, and that SageMaker may assume it."""
    arn = context.plan.request.get("RoleArn", "")
    name = arn.rpartition("/")[2]
    owner = account_id(arn)
    if owner is not None and owner != context.account:
        message = (
            f"the role belongs to the account {owner}, and the credentials to {context.account}"
        )
        hint = "log in to that account, or name a role of this one: `role` in [sagemaker]"
        yield finding_of("SM903", message, hint)
        return

    try:
        role = context.clients.call("iam", "get_role", RoleName=name)["Role"]
    except NotThere:
        hint = "`aws iam list-roles` shows them; set `role` in [sagemaker]"
        yield finding_of("SM903", f"there is no role `{name}`", hint)
        return

    if not _trusts_sagemaker(role.get("AssumeRolePolicyDocument", {})):
        message = f"the role `{name}` does not trust SageMaker, which cannot assume it"
        hint = (
            f"add `{_SERVICE}` to the principals of its trust policy: `aws iam "
            "update-assume-role-policy`"
        )
        yield finding_of("SM904", message, hint)


def _trusts_sagemaker(policy: JsonMapping) -> bool:
    """Return whether a trust policy lets SageMaker assume its role. Conditions are ignored."""
    for statement in _as_list(policy.get("Statement", ())):
        services = statement.get("Principal", {})
        if services != "*":
            services = services.get("Service", ())
        actions = _as_list(statement.get("Action", ()))
        is_for_us = not {_SERVICE, "*"}.isdisjoint(_as_list(services))
        can_assume = not {"sts:AssumeRole", "sts:*", "*"}.isdisjoint(actions)
        if is_for_us and can_assume and statement.get("Effect") == "Allow":
            return True
    return False


def _buckets(plan: Plan) -> dict[str, ValuePath]:
    """Map each bucket that gets uploads or outputs to the path of the job field that names it, if
    one does."""
    request = plan.request
    buckets: dict[str, ValuePath] = {}

    def add(uri: str, path: ValuePath) -> None:
        buckets.setdefault(S3Uri.parse(uri).bucket, path)

    for upload in plan.uploads:
        add(upload.destination, ())
    if "OutputDataConfig" in request:
        add(request["OutputDataConfig"]["S3OutputPath"], ())
    for item in request.get("ProcessingOutputConfig", {}).get("Outputs", ()):
        if "S3Output" in item:
            add(item["S3Output"]["S3Uri"], ("outputs", item["OutputName"], "sagemaker"))
    if "CheckpointConfig" in request:
        add(request["CheckpointConfig"]["S3Uri"], ("checkpoint", "sagemaker"))
    return buckets


def _bucket(bucket: str, path: ValuePath, context: CheckContext) -> Iterator[Finding]:
    """Check that a bucket exists, in the region of the job."""
    here = context.region
    try:
        answer = context.clients.call("s3", "head_bucket", Bucket=bucket)
    except NotThere:
        hint = f"`aws s3 mb s3://{bucket} --region {here}` makes it; or name another in [sagemaker]"
        yield finding_of("SM905", f"there is no bucket `{bucket}`", hint, path)
        return

    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    region: str | None = answer.get("BucketRegion") or headers.get("x-amz-bucket-region")
    if region and here and region != here:
        message = f"the bucket `{bucket}` is in `{region}`, and the job would run in `{here}`"
        hint = f'use a bucket of `{here}`, or `region = "{region}"`'
        yield finding_of("SM906", message, hint, path)


def _input(uri: str, path: ValuePath, context: CheckContext) -> Iterator[Finding]:
    """Check that an input has at least one object."""
    where = S3Uri.parse(uri)
    bucket = where.bucket
    try:
        page = context.clients.call(
            "s3", "list_objects_v2", Bucket=bucket, Prefix=where.key, MaxKeys=1
        )
    except NotThere:
        hint = "look at the bucket's name"
        yield finding_of("SM905", f"there is no bucket `{bucket}`", hint, path)
        return
    if not page.get("Contents"):
        hint = f"`aws s3 ls s3://{bucket}/` shows what is there"
        yield finding_of("SM907", f"there is nothing under `{uri}`", hint, path)


_READ = {
    "secretsmanager": (
        "secretsmanager:GetSecretValue",
        "secretsmanager:{region}:{account}:secret:{name}-??????",
    ),
    "ssm": ("ssm:GetParameter", "ssm:{region}:{account}:parameter/{name}"),
}
"""Maps each service that holds secrets to the action and the resource that a policy needs."""


def _secret(name: str, place: str, context: CheckContext) -> Iterator[Finding]:
    """Check that the job's role may read a secret. `place` is its reference, such as `ssm:NAME`."""
    role = context.plan.request.get("RoleArn", "")
    scheme, _, where = place.partition(":")
    if scheme not in _READ or account_id(role) is None:
        return
    action, form = _READ[scheme]
    arn = where.partition("#")[0]
    if not arn.startswith("arn:"):
        partition = role.split(":")[1]
        path = arn.lstrip("/")
        resource = form.format(region=context.region, account=context.account, name=path)
        arn = f"arn:{partition}:{resource}"

    words = {"PolicySourceArn": role, "ActionNames": [action], "ResourceArns": [arn]}
    answer = context.clients.call("iam", "simulate_principal_policy", **words)
    if any(result["EvalDecision"] != "allowed" for result in answer["EvaluationResults"]):
        role_name = role.rpartition("/")[2]
        message = f"the role `{role_name}` may not read the secret `{name}`"
        hint = f"allow it `{action}` on `{arn}`"
        yield finding_of("SM522", message, hint, ("environment", "secrets", name))


def _quota(context: CheckContext) -> Iterator[Finding]:
    """Check that the account may start as many instances as the job needs."""
    counts = _quotas_needed(context.plan.request)
    pages = context.clients.pages(
        "service-quotas", "list_service_quotas", ServiceCode="sagemaker", MaxResults=100
    )
    place = ("resources", "instance_count")
    for page in pages:
        for quota in page["Quotas"]:
            count = counts.pop(quota["QuotaName"], 0)
            if count > quota["Value"]:
                most = f"the account may use {quota['Value']:g} of `{quota['QuotaName']}`"
                hint = (
                    "ask for more: `aws service-quotas request-service-quota-increase "
                    f"--service-code sagemaker --quota-code {quota['QuotaCode']} "
                    f"--desired-value {count}`"
                )
                yield finding_of("SM908", f"{most}, and the job needs {count}", hint, place)
        if not counts:
            return  # the other pages have only quotas of other types
    for name, count in counts.items():
        message = f"AWS lists no quota `{name}`, so it is not known whether you may use {count}"
        hint = "look in the console, under Service Quotas: Amazon SageMaker"
        yield finding_of("SM902", message, hint, place)


def _quotas_needed(request: JsonMapping) -> dict[str, int]:
    """Map each quota's name in Service Quotas to the number of the job's instances that count
    against it."""
    resources = request.get("ResourceConfig")
    use = "training job usage"
    if resources is None:
        resources = request["ProcessingResources"]["ClusterConfig"]
        use = "processing job usage"
    elif request.get("EnableManagedSpotTraining"):
        use = "spot training job usage"

    needed: dict[str, int] = {}
    for group in resources.get("InstanceGroups") or [resources]:
        if "InstanceType" in group:
            name = f"{group['InstanceType']} for {use}"
            needed[name] = needed.get(name, 0) + group["InstanceCount"]
    return needed


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


# Refresh the catalogue with the prices of training instances in a region, from AWS's price list.
#
# This module has not been tested with real answers of GetProducts. The fields are those of AWS's
# public price list, in which the usage type of a training instance is `USE1-Train:ml.g5.2xlarge`.

_TRAINING = re.compile(r"(?:[A-Z0-9]+-)?Train:(ml\.[a-z0-9-]+\.[a-z0-9-]+)")


def refresh(clients: Clients, region: str, *, folder: Path, date: str) -> Refreshed:
    """Write the prices of a region to a file in the configuration folder. `date` is today's, such
    as `2026-01-31`."""
    filters = [
        {"Type": "TERM_MATCH", "Field": "regionCode", "Value": region},
        {"Type": "TERM_MATCH", "Field": "productFamily", "Value": "ML Instance"},
    ]
    pages = clients.pages(
        "pricing", "get_products", ServiceCode="AmazonSageMaker", Filters=filters, MaxResults=100
    )
    prices: dict[str, float] = {}
    for page in pages:
        found = map(_price, page.get("PriceList", ()))
        prices.update(pair for pair in found if pair is not None)

    table: dict[str, dict[str, object]] = {}
    unknown: list[str] = []
    source = f"AWS price list, {region}"
    for name, price in sorted(prices.items()):
        if instance_named("sagemaker", name) is None:
            unknown.append(name)
        else:
            table[name] = {"price": price, "price_date": date, "price_source": source}
    if not table:
        message = f"AWS's price list has no training instances in `{region}`"
        hint = "check `region` under `[sagemaker]` in cloudtrain.toml"
        raise TargetError(message, hint=hint)

    about = f"prices of SageMaker training in {region}, asked on {date}"
    file = write_refreshed(folder, "sagemaker", table, about=about)
    notes: tuple[str, ...] = ()
    if unknown:
        notes = (f"without those that the catalogue does not know: {', '.join(unknown)}",)
    return Refreshed(file, region, len(table), (), notes)


def _price(text: Any) -> tuple[str, float] | None:
    """Return an instance type and its dollars per hour; None if the entry is not an on-demand
    training instance."""
    prices: list[float] = []
    try:
        entry = json.loads(text)
        match = _TRAINING.fullmatch(entry["product"]["attributes"]["usagetype"])
        for term in entry["terms"]["OnDemand"].values():
            for dimension in term["priceDimensions"].values():
                unit = str(dimension.get("unit")).casefold()
                if unit in ("hrs", "hours", "hour"):
                    prices.append(float(dimension["pricePerUnit"]["USD"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    if match is None or len(prices) != 1 or not 0 < prices[0] < inf:
        return None
    return match[1], prices[0]


declare_all(Path(__file__).with_suffix(".toml"))
