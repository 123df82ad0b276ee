"""Commands inside a run: as a further step of its job, which takes no CPUs of its own."""

from __future__ import annotations

from cloudtrain.targets.common.remote import enter_script, marked, remote_line
from cloudtrain.targets.inside import (
    ExecRequest,
    Session,
    not_running,
    relay_command,
    relayed,
)
from cloudtrain.targets.slurm.runner import Runner, rows_of, ssh_argv


def enter(runner: Runner, folder: str, name: str, asked: ExecRequest) -> Session:
    """Return the session for a run in `folder`. Raises `UsageError` if the run has no such rank or
    instance."""
    node, rank, job = _locate(runner, folder, name, asked)
    if asked.is_for_ssh:
        jump = {"ProxyJump": runner.host} if runner.host else {}
        return Session(ssh={"HostName": node, **jump})

    step = ["srun", "--overlap", f"--jobid={job}", "--nodes=1", "--ntasks=1", f"--nodelist={node}"]
    step += ["--chdir=/", "--mpi=none", "--cpu-bind=none"]
    step.append("--pty" if asked.has_terminal else "--quit-on-interrupt")
    command = asked.command if asked.port is None else relay_command(asked.port)
    step += ["bash", "-c", enter_script(), "cloudtrain", f"SLURM_JOB_ID={job}", rank, *command]

    argv = tuple(step)
    is_marked = False
    if runner.host is not None:
        # a login shell may greet, which belongs on a terminal only
        is_marked = not (asked.has_terminal or asked.port)
        script = 'exec "$@"'
        line = remote_line(marked(script) if is_marked else script, step, "-lc")
        ssh = ssh_argv(runner.state_dir, "-t" if asked.has_terminal else "-T")
        argv = (*ssh, "--", runner.host, line)
    if asked.port is not None:
        return relayed(argv, runner.environ, asked)
    return Session(argv, runner.environ, is_marked=is_marked)


def _locate(runner: Runner, folder: str, name: str, asked: ExecRequest) -> tuple[str, str, str]:
    """Return the node, the rank and the job's number."""
    wanted = ["" if number is None else str(number) for number in (asked.rank, asked.instance)]
    values = dict(rows_of(runner.run("where", folder, *wanted)))
    rank = values.get("@rank", "")
    node = values.get("@node", "")
    if node:
        return node, rank, values["@job"]

    hint = "wait until the job runs: `cloudtrain status`"
    if not rank and "@ranks" in values:
        hint = f"its ranks are 0 to {values['@ranks']}"
    raise not_running(name, asked, hint)
