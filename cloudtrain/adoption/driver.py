"""A program that runs a script to its end, and captures the jobs that it creates. `cloudtrain
adopt` starts a copy of this file.

The script's own interpreter runs the copy, so this file uses only the standard library and works
with Python 3.7 and newer. The file `plan.json` in the folder of the copy holds the names of the
script and the hooks, the script's arguments, and the cells of a notebook.
"""

import ast
import importlib.abc
import importlib.util
import json
import os
import socket
import sys
import threading
import time
import traceback

CREATING = (
    "fit",
    "train",
    "create_training_job",
    "create_hyper_parameter_tuning_job",
    "create_or_update",
)
"""Methods that create jobs."""

MOST_KEPT = 256 << 20
"""The most bytes of uploads that are kept, without the archives."""

MOST_JOBS = 200
"""The most jobs that are captured."""

LONGEST_SLEEP = 0.02
"""In seconds, once a job was created: a script that waits for its job asks for its state again and
again, and learns at once that the job has completed."""


FOLDER = os.path.dirname(os.path.abspath(__file__))


def main():
    """Block the network, install the hooks, and run the script or the cells that `plan.json`
    names."""
    with open(os.path.join(FOLDER, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    script = os.path.abspath(plan["script"])
    refuse_sockets()
    sys.meta_path.insert(0, Finder(hooks_of(plan["hooks"], script)))

    sys.argv = [plan["script"], *plan["arguments"]]
    sys.path[0] = os.getcwd()
    if plan["cells"] is None:
        run_script(script)
        return

    names = {"__name__": "__main__"}
    causes = {}
    for number, cell in enumerate(plan["cells"], 1):
        title = "cell %d" % number
        try:
            module = ast.parse(cell, title)
        except (SyntaxError, ValueError) as error:
            fail(title, error, ast.Pass(), causes)
            continue
        for statement in list(module.body):
            module.body = [statement]
            try:
                exec(compile(module, title, "exec"), names)
            # the next statements may still create the job
            except Exception as error:  # noqa: BLE001
                fail(title, error, statement, causes)


def run_script(script):
    """Run a script. If it fails, record the line in which it does."""
    import runpy

    sys.path[0] = os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == script]
        place = "line %s: " % lines[-1] if lines else ""
        message = "%s%s: %s" % (place, type(error).__name__, error)
        write("failed.txt", message.partition("\n")[0][:200])
        raise


def write(name, line):
    """Add a line to a file in the folder of the copy."""
    place = os.path.join(FOLDER, name)
    with open(place, "a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(line + "\n")


def fail(title, error, statement, causes):
    """Record that a statement has failed. `causes` maps the names that failed statements have not
    set to the messages of the first failures. The file `cause.txt` gets the one for which a job was
    not created."""
    message = "%s: %s: %s" % (title, type(error).__name__, error)
    sys.stderr.write(message + "\n")
    write("messages.txt", message.partition("\n")[0])
    if isinstance(error, NameError):
        # the message is: name 'estimator' is not defined
        name = str(error).partition("'")[2].partition("'")[0]
        message = causes.get(name, message)

    nodes = list(ast.walk(statement))
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            causes[node.id] = message
        elif isinstance(node, ast.alias):  # `import a.b` sets `a`
            name = (node.asname or node.name).partition(".")[0]
            causes[name] = message

    write("failed.txt", title)
    creates = any(isinstance(node, ast.Attribute) and node.attr in CREATING for node in nodes)
    if creates:  # only the first line is read
        write("cause.txt", message.partition("\n")[0])


def current_place(script):
    """Return the line of the script or the cell that runs now: `line 7`. Empty in a thread."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name == script:
            return "line %d" % frame.f_lineno
        if name.startswith("cell "):
            return name
        frame = frame.f_back
    return ""


def refuse_sockets():
    """Make every connection that this process opens through Python fail."""

    def refuse(*_, **__):
        raise OSError("cloudtrain adopt runs scripts without network access")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        setattr(socket, name, refuse)


def hooks_of(names, script):
    """Load the hooks `names`. Return a dict that maps the name of each hooked module
    to a tuple: the hook and the functions that the hook calls with a captured job and with an
    upload."""
    hooks = {}
    for name in names:
        path = os.path.join(FOLDER, "hook_%s.py" % name)
        spec = importlib.util.spec_from_file_location("hook_" + name, path)
        hook = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hook)
        hooks[hook.MODULE] = (hook, taker(name, script), keeper())
    return hooks


def taker(name, script):
    """Return a function that writes a captured job to a file, from which on no sleep is long."""
    lock = threading.Lock()
    jobs = os.path.join(FOLDER, "jobs")
    sleep = time.sleep

    def emit(record):
        record = {"target": name, "record": record, "place": current_place(script)}
        text = json.dumps(record, default=str)
        with lock:
            count = len(os.listdir(jobs))
            if count == MOST_JOBS:
                write("failed.txt", "it creates more than %d jobs" % count)
                os._exit(0)
            # a script may create jobs in several processes
            place = os.path.join(jobs, "%04d-%d" % (count, os.getpid()))
            # by another name first, so that the file is whole or missing
            with open(place + ".part", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(place + ".part", place + ".json")
        time.sleep = lambda seconds: sleep(min(seconds, LONGEST_SLEEP))

    return emit


def keeper():
    """Return a function that stores the script's uploads. It stores every archive, because one of
    them has the job's code. It stores the content of other uploads only while their total is at
    most 256 MiB."""
    count = size = 0
    lock = threading.Lock()

    def keep(place, content):
        nonlocal count, size
        # an SDK may upload from several threads
        with lock:
            if not place.endswith(".tar.gz"):
                if size + len(content) > MOST_KEPT:
                    content = b""
                size += len(content)
            with open(os.path.join(FOLDER, "uploads", "%d" % count), "wb") as file:
                file.write(content)
            count += 1
            write("uploads.txt", place.replace("\n", " "))

    return keep


class Finder(importlib.abc.MetaPathFinder):
    """An import finder that calls each hook right after its module was imported."""

    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        """Return the spec of a hooked module, with a loader that calls the hook; None for every
        other module."""
        if name not in self.hooks:
            return None
        # `find_spec` below asks this finder again, which has to pass then
        hook, emit, keep = self.hooks.pop(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        loader = spec.loader
        execute = loader.exec_module

        def run(module):
            execute(module)
            hook.install(module, emit, keep)

        loader.exec_module = run
        return spec


if __name__ == "__main__":
    main()
