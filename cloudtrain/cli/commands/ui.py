from __future__ import annotations

import sys
from typing import Annotated

from cloudtrain.cli.options import flag, option
from cloudtrain.cli.terminal import print_text, say
from cloudtrain.page.notebook import EXTRA
from cloudtrain.system.plugins import require


def ui_command(
    port: Annotated[
        int | None,
        option(
            "--port",
            "N",
            "The port. Default: the first free one from 8765 on; 0 for any.",
            min=0,
            max=65535,
        ),
    ] = None,
    host: Annotated[
        str,
        option(
            "--host",
            "ADDRESS",
            "The address to listen on. Others than 127.0.0.1 are for reading only.",
        ),
    ] = "127.0.0.1",
    no_browser: Annotated[bool, flag("--no-browser", "Only print the address.")] = False,
) -> None:
    """Show all runs on a page in your browser.

    The page is served from this machine until Ctrl-C. The address holds a token: who has it can
    stop your runs.

    \b
    Examples:
      cloudtrain ui
      cloudtrain ui --no-browser --port 9000
    """
    for module in ("starlette", "uvicorn"):
        require(module, extra=EXTRA)
    from cloudtrain.page.server import forwarding, make_page, open_browser

    page = make_page(port, host)
    print_text(f"{page.link}\n")
    sys.stdout.flush()  # a pipe's reader needs it while the page is served
    command = forwarding(page.address)
    if command is not None:
        say(f"on your own machine: {command}")
    if not no_browser and command is None and not open_browser(page.link):
        say("open this address in a browser")
    page.serve()
