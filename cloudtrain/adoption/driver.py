"""A program that runs a script and stops it at the first job that it creates. `cloudtrain adopt`
starts a copy of this file.

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


def main(folder):
    """Block the network, install the hooks, and run the script or the cells that `plan.json` in
    `folder` names."""
    with open(os.path.join(folder, "plan.json"), encoding="utf-8") as file:
        plan = json.load(file)
    refuse_sockets()
    sys.meta_path.insert(0, Finder(hooks_of(folder, plan["hooks"])))

    sys.argv = [plan["script"], *plan["arguments"]]
    sys.path[0] = os.getcwd()
    if plan["cells"] is None:
        import runpy

        sys.path[0] = os.path.dirname(os.path.abspath(plan["script"]))
        runpy.run_path(os.path.abspath(plan["script"]), run_name="__main__")
        return

    names = {"__name__": "__main__"}
    causes = {}
    for number, cell in enumerate(plan["cells"], 1):
        title = "cell %d" % number
        try:
            module = ast.parse(cell, title)
        except (SyntaxError, ValueError) as error:
            fail(folder, title, error, ast.Pass(), causes)
            continue
        for statement in list(module.body):
            module.body = [statement]
            try:
                exec(compile(module, title, "exec"), names)
            # the next statements may still create the job
            except Exception as error:  # noqa: BLE001
                fail(folder, title, error, statement, causes)


def fail(folder, title, error, statement, causes):
    """Record that a statement has failed. `causes` maps the names that failed statements have not
    set to the messages of the first failures. The file `cause.txt` gets the one for which a job was
    not created."""
    message = "%s: %s: %s" % (title, type(error).__name__, error)
    sys.stderr.write(message + "\n")
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

    with open(os.path.join(folder, "failed.txt"), "a", encoding="utf-8") as file:
        file.write(title + "\n")
    place = os.path.join(folder, "cause.txt")
    creates = any(isinstance(node, ast.Attribute) and node.attr in CREATING for node in nodes)
    if creates and not os.path.exists(place):
        with open(place, "w", encoding="utf-8") as file:
            file.write(message.partition("\n")[0])


def refuse_sockets():
    """Make every connection that this process opens through Python fail."""

    def refuse(*_, **__):
        raise OSError("cloudtrain adopt runs scripts without network access")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        setattr(socket, name, refuse)


def hooks_of(folder, names):
    """Load the hooks `names` from `folder`. Return a dict that maps the name of each hooked module
    to a tuple: the hook and the functions that the hook calls with a captured job and with an
    upload."""
    hooks = {}
    for name in names:
        path = os.path.join(folder, "hook_%s.py" % name)
        spec = importlib.util.spec_from_file_location("hook_" + name, path)
        hook = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(hook)
        hooks[hook.MODULE] = (hook, taker(folder, name), keeper(folder))
    return hooks


def taker(folder, name):
    """Return a function that writes a captured job to a file and ends the process at once. It does
    not end the process by an exception, which the script could catch."""

    def emit(record):
        text = json.dumps({"target": name, "record": record}, default=str)
        place = os.path.join(folder, "captured.json")
        # by another name first, so that the file is whole or missing
        with open(place + ".part", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(place + ".part", place)
        os._exit(0)

    return emit


def keeper(folder):
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
            with open(os.path.join(folder, "uploads", "%d" % count), "wb") as file:
                file.write(content)
            count += 1
            with open(os.path.join(folder, "uploads.txt"), "a", encoding="utf-8") as file:
                file.write(place.replace("\n", " ") + "\n")

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
    main(os.path.dirname(os.path.abspath(__file__)))
