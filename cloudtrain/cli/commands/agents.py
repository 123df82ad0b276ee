from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cloudtrain.cli import options
from cloudtrain.cli.app import COMMANDS, Command, new_group
from cloudtrain.cli.options import flag
from cloudtrain.cli.terminal import print_json, print_text
from cloudtrain.system.plugins import require
from cloudtrain.version import __version__

EXTRA = "mcp"

agents_command = new_group(needs_command=True)


@agents_command.callback()
def agents() -> None:
    """Help programs that type commands for you.

    docs/guides/agents.md describes them, and docs/guides/approval.md what a person keeps for
    themselves.

    \b
    Examples:
      cloudtrain agents skill > .claude/skills/cloudtrain/SKILL.md
      cloudtrain agents mcp --allow-submit
    """


@agents_command.command("skill", cls=Command)
def print_skill(json: options.Json = False) -> None:
    """Print a SKILL.md for coding agents, for this version of cloudtrain.

    \b
    Example:
      cloudtrain agents skill > .claude/skills/cloudtrain/SKILL.md
    """
    template = Path(__file__).with_name("skill.md.txt").read_text("utf-8")
    commands = [f"- `{name}`: {row.summary}" for name, row in COMMANDS.items()]
    text = template.replace("VERSION", __version__).replace("COMMANDS", "\n".join(commands))
    if json:
        print_json({"version": __version__, "text": text})
    else:
        print_text(text)


@agents_command.command("mcp", cls=Command)
def serve_mcp(
    allow_submit: Annotated[
        bool,
        flag(
            "--allow-submit",
            "Also offer to submit a plan by its hash. If it costs money, the person is asked.",
        ),
    ] = False,
    allow_stop: Annotated[bool, flag("--allow-stop", "Also offer to stop runs.")] = False,
) -> None:
    """Serve the Model Context Protocol on stdin and stdout.

    Offers to plan and check jobs, and to read the status, metrics and output of runs. The client
    must be able to show forms for the question whether to spend money.

    \b
    Examples:
      cloudtrain agents mcp
      cloudtrain agents mcp --allow-submit --allow-stop
    """
    require("mcp.server", extra=EXTRA)
    # the extra may be missing, and its import takes a second
    from cloudtrain.cli.mcp_server import make_server

    make_server(allow_submit=allow_submit, allow_stop=allow_stop).run("stdio")
