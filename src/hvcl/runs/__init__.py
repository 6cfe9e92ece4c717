"""Running: the loop, the run folder, exact resume, and many seeds over all cores."""

from hvcl.runs.engine import run_seeds
from hvcl.runs.folder import RunFolder, SeedFolder
from hvcl.runs.loop import Observer, run
from hvcl.runs.supervised import RunConfig

__all__ = ["Observer", "RunConfig", "RunFolder", "SeedFolder", "run", "run_seeds"]
