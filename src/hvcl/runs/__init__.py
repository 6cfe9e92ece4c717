"""Running: the loop, experiments, the run folder, exact resume, and many seeds over all cores."""

from hvcl.core.errors import InterruptedRun
from hvcl.runs.engine import run_seeds
from hvcl.runs.executor import execute, execute_all
from hvcl.runs.experiment import Experiment, Session
from hvcl.runs.folder import RunFolder, SeedFolder
from hvcl.runs.loop import Observer, run
from hvcl.runs.seed import run_seed
from hvcl.runs.supervised import RunConfig

__all__ = [
    "Experiment",
    "InterruptedRun",
    "Observer",
    "RunConfig",
    "RunFolder",
    "SeedFolder",
    "Session",
    "execute",
    "execute_all",
    "run",
    "run_seed",
    "run_seeds",
]
