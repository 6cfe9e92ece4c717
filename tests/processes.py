"""Programs in processes of their own that begin with torch there: importing it takes each longer than its own work.

A Python process imports what programs have in common, nothing of hvcl, and is copied (fork) for each program. As with
`subprocess.run`, the program starts with its folder, its environment and a `__main__` of its own, may crash, and answers with
exit code and output.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

SHARED = ("torch", "torch._dynamo", "scipy.linalg", "sklearn.datasets", "pandas", "rich.progress")


def run_python(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """What ``python ARGUMENTS`` does: a script, ``-c`` and code, or ``-m`` and a module, with more in the environment."""
    words, seconds = [str(word) for word in arguments], 300
    if not hasattr(os, "fork"):
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=seconds)
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        program = {"words": words, "cwd": str(cwd or Path.cwd()), "environment": dict(os.environ) | environment}
        code = _ask(program | {"out": str(out), "err": str(err), "seconds": seconds})
        return subprocess.CompletedProcess([sys.executable, *words], code, out.read_text(), err.read_text())


def _ask(program: dict[str, Any]) -> int:
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(program) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(server.communicate)  # the end of its input ends it
    return server


def _serve() -> Callable[[], object] | None:
    """Copies this process for every program that is asked for; in a copy, what there is to do."""
    for module in SHARED:
        with suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # or the first collection in a copy would copy all of it
    for line in sys.stdin:
        child = os.fork()
        if not child:
            return _prepared(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def _prepared(words: list[str], cwd: str, environment: dict[str, str], out: str, err: str, seconds: int) -> Callable[[], object]:
    """This process made to what a new one would be; the program."""
    signal.alarm(seconds)
    ours = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, path in enumerate((os.devnull, out, err)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    importlib.invalidate_caches()
    theirs = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = ["", *theirs, *(place for place in sys.path[1:] if place not in ours)]
    match words:
        case ["-c", code, *rest]:
            sys.argv = ["-c", *rest]
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            return lambda: exec(compile(code, "<string>", "exec"), main.__dict__)
        case ["-m", module, *rest]:
            sys.argv = ["-m", *rest]
            return lambda: runpy.run_module(module, run_name="__main__", alter_sys=True)
        case _:
            sys.argv = words
            sys.path[0] = str(Path(words[0]).resolve().parent)
            return lambda: runpy.run_path(words[0], run_name="__main__")


def _end(program: Callable[[], object]) -> NoReturn:
    """Run it and leave as the interpreter does, but without taking apart all that was imported: that takes a second."""
    code = 0
    try:
        program()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError):  # closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    program = _serve()
    if program is not None:
        _end(program)
