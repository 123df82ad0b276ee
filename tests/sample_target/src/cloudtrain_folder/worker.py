"""`python -m cloudtrain_folder.worker RUN`: unpacks the code and runs the script, once, in the background."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from cloudtrain.code.unpack import unpack
from cloudtrain.system.processes import ProcessLock


def work(run: Path, request: dict) -> dict:
    unpack(Path(request["archive"]), run / "code", request["sha256"])
    for folder in (*request["outputs"].values(), run / "logs"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    started, kill_at, reason, env = time.monotonic(), float("inf"), None, {**os.environ, **request["env"]}
    with (run / "logs" / "0.log").open("wb") as log:
        where: dict = {"cwd": run / "code", "env": env, "stdout": log, "stderr": log}
        process = subprocess.Popen(request["argv"], **where, start_new_session=True)
    while process.poll() is None:
        over = time.monotonic() - started > (request["max_runtime"] or float("inf"))
        if reason is None and (over or (run / "stop").exists()):
            reason, kill_at = "`max_runtime` is over" if over else "it was stopped", time.monotonic() + 10
            os.killpg(process.pid, signal.SIGTERM)
        elif time.monotonic() > kill_at:
            os.killpg(process.pid, signal.SIGKILL)
        time.sleep(0.05)
    with suppress(ProcessLookupError):  # what the script has left behind
        os.killpg(process.pid, signal.SIGKILL)
    code, said = process.returncode, (run / "logs" / "0.log").read_text("utf-8", "replace").strip().splitlines()
    if reason is None and code:
        return {"state": "failed", "reason": ": ".join([f"exit code {code}", *said[-1:]]), "exit_code": code}
    return {"state": "stopped" if reason else "succeeded", "reason": reason, "exit_code": code}


if __name__ == "__main__":
    run = Path(sys.argv[1])
    if ProcessLock.take(run / "lock") is None or (run / "started").exists():
        sys.exit()  # the run has a worker, or had one
    (run / "started").touch()
    if os.fork():
        sys.exit()  # the child goes on, with the lock
    try:
        result = work(run, json.loads((run / "request.json").read_text()))
    except Exception as error:  # noqa: BLE001 - whatever it is, the run says why it failed
        result = {"state": "failed", "reason": f"the script did not start: {error}"}
    result |= {"started": (run / "started").stat().st_mtime, "ended": time.time()}
    (run / "result").write_text(json.dumps(result))
    (run / "result").replace(run / "result.json")
