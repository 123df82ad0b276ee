"""Make the pictures of the page in docs/assets: real runs of this machine, seen in Chromium. Needs the `dev` extra.

python tools/site/screenshots.py          about a minute
"""

from __future__ import annotations

import io
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.page.served import CHROMIUM, DIGITS, Program  # noqa: E402

ASSETS = ROOT / "docs" / "assets"
COLOURS = 64
"""Of a picture: the page has few, and a small file is worth more than a smooth edge."""


def make_runs(program: Program) -> dict[str, str]:
    """Return the address of each picture's view, after the runs that it shows."""
    sweep = program.submit("sweep.yaml")
    slow = program.submit("job.yaml", "--set", "hyperparameters.lr=0.1")
    fast = program.submit("job.yaml", "--set", "hyperparameters.lr=0.4")
    fails = ("--set", "hyperparameters.lr=0.2", "--set", "hyperparameters.fails=1")
    failed = program.submit("job.yaml", *fails)
    digits = program.submit(DIGITS, "--processes-per-instance", "2")
    for run in (sweep, slow, fast, digits):
        program.wait(run)
    program.wait(failed, code=1)
    return {
        "run": f"#/run/{digits}",
        "log": f"#/run/{failed}/log-error",
        "plan": f"#/run/{fast}/plan",
        "compare": f"#/compare/{slow},{fast}",
        "sweep": f"#/run/{sweep}",
        "runs": "#/",  # the last one, so that the trends of all runs are known
    }


def save(picture: bytes, path: Path) -> None:
    """Write a picture with few colours."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")


def main() -> int:
    """Make all pictures."""
    if CHROMIUM is None:
        print("no Chromium is here to make pictures with", file=sys.stderr)
        return 1
    browsers = import_module("playwright.sync_api")
    with tempfile.TemporaryDirectory() as name, browsers.sync_playwright() as playwright:
        program = Program(Path(name), rates=[0.03, 0.1, 0.2, 0.4, 0.8])
        views = make_runs(program)
        with program.page() as link:
            browser = playwright.chromium.launch(executable_path=CHROMIUM)
            page = browser.new_page(viewport={"width": 1200, "height": 720})
            page.goto(link)
            for view, place in views.items():
                page.evaluate("(place) => { location.hash = place }", place)
                page.wait_for_timeout(3000)  # until its curves are drawn
                save(page.screenshot(), ASSETS / f"page-{view}.png")
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
