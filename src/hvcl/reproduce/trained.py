"""Learners as they were at the end of their runs."""

from __future__ import annotations

from pathlib import Path

from hvcl.core.errors import RunError
from hvcl.learners import Learner
from hvcl.runs import RunFolder
from hvcl.runs.supervised import SupervisedSession
from hvcl.streams import Stream


def trained(folder: Path, seed: int) -> tuple[Stream, Learner]:
    """The stream and the learner of a finished supervised run, from its last checkpoint."""
    run = RunFolder(folder)
    files = run.seed(seed)
    session, checkpoint = run.config().build(seed), files.load_checkpoint()
    if checkpoint is None or not isinstance(session, SupervisedSession):
        raise RunError(f"{files.path} has no checkpoint of a supervised run: remove {folder} and run it again")
    session.load_state_dict(checkpoint, files.evaluations())
    return session.stream, session.learner
