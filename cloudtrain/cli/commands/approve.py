from __future__ import annotations

import sys
from datetime import datetime
from typing import Annotated

from cloudtrain.cli import options
from cloudtrain.cli.options import argument
from cloudtrain.cli.runs import confirm
from cloudtrain.cli.terminal import print_json, say, show, show_table
from cloudtrain.documents import JsonObject
from cloudtrain.errors import PersonNeeded
from cloudtrain.lifecycle.store.plans import AskedPlan
from cloudtrain.lifecycle.store.schema import read_store
from cloudtrain.lifecycle.submission.approval import approve, asked_plan
from cloudtrain.plans.document import Block, Document, Heading, Notice, Pairs, Section
from cloudtrain.plans.plan import request_blocks
from cloudtrain.targets.settings import read_environment


def approve_command(
    plan: Annotated[
        str | None,
        argument(
            "[HASH]",
            "The hash of a plan, or its first 12 digits. Default: list the plans that wait.",
            autocompletion=options.asked_plans,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Approve a plan that waits for you.

    If `[approval]` in your own settings says `paid_targets = "ask"`, a submit on a target that
    costs money waits for your approval. This command shows the plan and asks. It needs a terminal,
    and the exit code is 6 without one. An approval expires, and serves one run.

    \b
    Examples:
      cloudtrain approve
      cloudtrain approve 3f9a7c21d04e
    """
    here = read_environment()
    if plan is None:
        with read_store(here.state_dir) as store:
            waiting = [item for item in store.plans.asked() if item.run is None]
        rows = []
        for item in waiting:
            cost = item.shown["summary"].get("cost", "")
            rows.append((item.sha256[:12], item.shown["run_name"], item.shown["target"], cost))
        if json:
            print_json(list(map(_data, waiting)))
        elif rows:
            show_table(("PLAN", "RUN", "TARGET", "COST"), rows)
        else:
            say("no plan waits for your approval")
        return

    asked = asked_plan(plan, here)
    message = "nothing was approved, because only a person at a terminal can do so"
    if sys.stdin.isatty():
        show(_document(asked), sys.stderr)
        message = "nothing was approved"
    if not confirm(f"approve {asked.shown['run_name']}?"):
        hint = f"type `cloudtrain approve {asked.sha256[:12]}` in a terminal of your own"
        raise PersonNeeded(message, hint=hint, code="CT925")
    until = approve(asked, here)
    if json:
        print_json(_data(asked._replace(until=until)))
    else:
        when = datetime.fromtimestamp(until).strftime("%H:%M")
        say(f"approved until {when}, for one run; submit it again")


def _data(plan: AskedPlan) -> JsonObject:
    """Return a plan that waits as JSON data. `approved_until` is in seconds since the epoch."""
    names = ("run_name", "job_name", "target", "summary", "findings")
    data = {name: plan.shown[name] for name in names}
    return {"plan": plan.sha256, **data, "asked": plan.asked, "approved_until": plan.until}


def _document(plan: AskedPlan) -> Document:
    """Return what a person sees before they approve."""
    shown = plan.shown
    blocks: list[Block] = [Heading(f"{shown['run_name']} on {shown['target']}")]
    blocks.append(Pairs(list(shown["summary"].items())))
    for finding in shown["findings"]:
        blocks.append(Notice(finding["level"], finding["message"], finding["code"]))
    blocks.append(
        Section(f"Request (plan {plan.sha256[:12]})", list(request_blocks(shown["request"])))
    )
    return Document(blocks)
