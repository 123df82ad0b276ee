from __future__ import annotations

import sys

from cloudtrain.cli import options


def command(name: options.RunName, json: options.Json = False) -> None:
    """Show the state of a run and why it failed.

    The exit code is 0 in every state. `cloudtrain wait` exits with 1 when the run did not succeed.

    \b
    Examples:
      cloudtrain status last
      cloudtrain status digits-ddp-3f9a
      cloudtrain status last --json | jq -r .state
    """
    from cloudtrain.cli import inputs
    from cloudtrain.cli.report import status_json
    from cloudtrain.cli.terminal import print_json, show
    from cloudtrain.render.status import run_document

    run = inputs.run(name)
    status = run.status()
    if run.is_sweep:
        from cloudtrain.render.sweeps import sweep_document
        from cloudtrain.sweeps.sweep_run import sweep_of

        sweep = sweep_of(run)
        trials = sweep.trials()
        cost = sweep.cost(status, trials)
        if json:
            money = {"cost": None, "cost_left": None} if cost is None else {"cost": cost.spent, "cost_left": cost.left}
            print_json(status_json(run, status) | money)
            return
        more = {"sweep": run.job_name, "continues": sweep.continues, "folder": run.directory}
        rows = {name: str(value) for name, value in more.items() if value is not None}
        show(sweep_document(run.name, str(run.ref), status, trials, sweep.objective, rows, cost), sys.stdout)
        return
    if json:
        print_json(status_json(run, status))
        return
    folder = {"folder": str(run.directory)} if run.directory is not None else {}
    show(run_document(run.name, str(run.ref), status, {"job": run.job_name} | folder), sys.stdout)
