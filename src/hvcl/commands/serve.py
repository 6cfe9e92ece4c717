"""hvcl serve: a saved model as a service over HTTP."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hvcl.commands.options import Parser, UsageError
from hvcl.core.errors import InputError
from hvcl.core.interrupt import Interrupts
from hvcl.serving.service import Service


def parser(words: Sequence[str]) -> Parser:
    """The options."""
    found = Parser(
        prog="hvcl serve",
        description="A saved model as a service: predict, learn, forget, drift, health, metrics. There is no access control: "
        "whoever reaches the port may learn and forget.",
    )
    found.add_argument(
        "model", type=Path, metavar="MODEL", help="file that hvcl stream --save or an estimator's save has written"
    )
    found.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1: this machine only)")
    found.add_argument("--port", metavar="N", type=int, default=8000, help="port to listen on (8000); 0: any")
    found.add_argument("--state", metavar="DIR", type=Path, help="folder of snapshots and log (MODEL.state)")
    found.add_argument("--snapshot-rows", metavar="N", type=int, default=10_000, help="rows between snapshots (10,000)")
    found.add_argument("--no-log", action="store_true", help="write no rows to the disk: a snapshot for every call that learns")
    return found


def run(options: argparse.Namespace) -> int:
    """Serve until an interrupt."""
    if not 0 <= options.port < 2**16:
        raise UsageError(f"--port is a number from 0 to 65535, got {options.port}")
    try:
        import uvicorn

        from hvcl.serving.app import make_app
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs {error.name}: pip install 'hvcl[serve]'") from None
    state = options.state or options.model.with_name(f"{options.model.name}.state")
    try:
        listening = socket.create_server((options.host, options.port), backlog=1024)
    except (OSError, OverflowError) as error:
        raise InputError(f"cannot listen on {options.host}:{options.port} ({getattr(error, 'strerror', error)})") from None
    with listening:
        service = Service(options.model, state, log=not options.no_log, snapshot_rows=options.snapshot_rows)
        try:
            with Interrupts() as interrupts, interrupts.waiting(), suppress(KeyboardInterrupt):
                _say(options.model, state, service, listening)
                # ends in good order on a signal, and raises it again afterwards
                uvicorn.Server(uvicorn.Config(make_app(service), log_level="warning")).run(sockets=[listening])
        finally:
            service.close()
    print(f"stopped: {service.published.totals.learned:,} rows learned here; state in {state}")
    return 0


def _say(model: Path, state: Path, service: Service, listening: socket.socket) -> None:
    health, calls = service.health(), service.replayed
    replayed = f", {calls:,} call{'' if calls == 1 else 's'} read from the log" if calls else ""
    learned = f"{health['learned']:,} row{'' if health['learned'] == 1 else 's'} learned here"
    print(f"{model}: {health['model']}, {learned}{replayed}; state in {state}")
    host, port = listening.getsockname()[:2]
    print(f"listening on http://{host}:{port} (Ctrl-C ends it)", flush=True)
