"""One seed of a run, from its folder: recorded as it goes, resumed exactly where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hvcl.core.errors import RunError
from hvcl.runs.environment import environment
from hvcl.runs.folder import RunFolder
from hvcl.runs.record import Recorder, Stop, Tell


def run_seed(
    folder: RunFolder,
    seed: int,
    *,
    tell: Tell = lambda progress: None,
    stop: Stop = lambda: False,
    checkpoint_seconds: float = 30.0,
) -> dict[str, Any]:
    """Run one seed of the run in `folder`, or go on with it, and return its result. No other process writes to it meanwhile.

    Computes on one thread: small networks are fastest so, one process per core, and results do not depend on the cores.

    Args:
        folder: a folder that was prepared.
        seed: which.
        tell: called with the progress now and then.
        stop: asked after every step; once it is true, `InterruptedRun` is raised, and the same call goes on.
        checkpoint_seconds: how often to save between the ends of tasks (supervised; agents are saved at every evaluation).
    """
    files = folder.seed(seed)
    done = files.result()
    if done is not None:
        return done
    with files.locked(), _one_thread():
        done = files.result()
        if done is not None:  # by another process, a moment ago
            return done
        session = folder.config().build(seed)
        recorder = Recorder(files, tell=tell, stop=stop, checkpoint_seconds=checkpoint_seconds)
        checkpoint = files.load_checkpoint()
        if checkpoint is None:
            files.cut_metrics(0)
        else:
            try:
                recorder.resume(checkpoint)
                session.load_state_dict(checkpoint, files.evaluations())
            except (RunError, KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise RunError(f"{files.checkpoint_path} does not fit this run ({reason}): start anew with --force") from None
        files.begin(environment(seed))
        session.run(recorder)
        result = {"seed": seed} | session.summarise(files.evaluations()) | {"seconds": recorder.seconds}
        files.finish(result)
        return result


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
