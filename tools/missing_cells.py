"""Which cells of the tables are not there, have too few seeds, or were made with other settings than today's.

.venv/bin/python -m tools.missing_cells                 # Domain-IL, three seeds
.venv/bin/python -m tools.missing_cells class task      # other scenarios
.venv/bin/python -m tools.missing_cells --seeds 1
"""

import argparse
import dataclasses

from hvcl.learners import known_methods
from hvcl.reproduce.settings import OWN_EPOCHS
from hvcl.results import keys, load_cells
from hvcl.runs import RunConfig
from hvcl.streams import BENCHMARKS
from tools.marks import ROOT

TASK_FREE = ("hvcl-growing", "exact")
"""Methods that the tables show without boundaries as well."""


def today(benchmark, method, scenario, task_free):
    """The settings that a run of this cell has today, as its file says them."""
    own = method in OWN_EPOCHS and BENCHMARKS[benchmark].front is None
    budget = None if own or known_methods()[method].one_pass else "standard"
    config = RunConfig.make(benchmark, method, (1,), {"scenario": scenario, "task_free": task_free}, budget=budget)
    return {keys.STREAM: dataclasses.asdict(config.stream), keys.LEARNER: dataclasses.asdict(config.learner)}


def changed(cell, settings):
    """Names of settings whose values differ; those that the file does not know are new, and their defaults change nothing."""
    found = []
    for part, now in settings.items():
        then = cell.document[part]
        found += [name for name, value in then.items() if name in now and _plain(now[name]) != _plain(value)]
    return found


def _plain(value):
    return list(value) if isinstance(value, tuple) else value


def missing(scenarios, seeds):
    """A line for every cell that is to be run."""
    cells = {(c.benchmark, c.scenario, c.supervision, c.method): c for c in load_cells(ROOT / "results")}
    for benchmark in (name for name in BENCHMARKS if name != "split-digits"):
        for scenario in scenarios:
            if benchmark == "permuted-mnist" and scenario != "domain":
                continue
            for method in sorted(known_methods()):
                for task_free in (False, True) if method in TASK_FREE else (False,):
                    cell = cells.get((benchmark, scenario, "task-free" if task_free else "boundaries", method))
                    name = f"{benchmark} {scenario} {method}{' task-free' if task_free else ''}"
                    settings = today(benchmark, method, scenario, task_free)
                    if cell is None:
                        yield f"{name}: missing"
                    elif names := changed(cell, settings):
                        yield f"{name}: other settings than today's ({', '.join(names)})"
                    elif len(cell.seeds) < seeds:
                        yield f"{name}: {len(cell.seeds)} of {seeds} seeds"


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenarios", nargs="*", default=["domain"], help="domain, class, task (domain)")
    parser.add_argument("--seeds", type=int, default=3, help="how many seeds a cell should have (3)")
    options = parser.parse_args()
    for line in missing(options.scenarios, options.seeds):
        print(line)


if __name__ == "__main__":
    main()
