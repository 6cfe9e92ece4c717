"""Torture: what users and machines do to runs, over and over, for as long as is wanted.

    python -m tools.torture --minutes 60            an hour; `make torture`
    python -m tools.torture --minutes 1 --only kills

- kills: runs of all methods, of both kinds, are ended at random moments (SIGKILL, SIGTERM, SIGINT, a limit of memory or of the
  size of files) and gone on with until they are done. Log and result must be those of a run that nobody disturbed, bit for bit.
- commands: generated command lines, made of the true options and of odd values. Each must end in time, with exit code 0, 1 or 2,
  and without a traceback; a refusal is one line.

Every failure is printed with what repeats it; the exit code is 1 if there was one. Figures go to `--output` as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hvcl.commands.completion import Entry, entries
from hvcl.commands.main import main
from hvcl.core.errors import HvclError
from hvcl.learners import known_methods
from hvcl.rl.methods import known_methods as known_agents
from hvcl.runs import Experiment, RunConfig, RunFolder
from hvcl.runs.reinforcement import RLConfig
from hvcl.runs.seed import run_seed

ENDINGS = ("SIGKILL", "SIGTERM", "SIGINT", "full disk", "memory")
LONGEST = 60
"""Seconds that a command may take."""
ODD = (
    "",
    "0",
    "-1",
    "1",
    "nan",
    "inf",
    "1e30",
    "9" * 20,
    "0-99999999",
    "naive",
    "naive,naive",
    "/dev/null",
    "..",
    "a b",
    "é",
    "--",
    "{}",
)

Report = Callable[[str], None]


def experiments() -> dict[str, Experiment]:
    """A small run of every method of either kind."""
    found: dict[str, Experiment] = {}
    for name, entry in sorted(known_methods().items()):
        fields = entry.config.__dataclass_fields__
        small = {"hidden": (8,), "random_features": 50, "warmup": 64}
        settings = {key: value for key, value in small.items() if key in fields}
        found[name] = RunConfig.make("split-digits", name, (1,), {"epochs": 1, "batch_size": 64}, settings)
    protocol = {"steps": 60, "evaluate_every": 20, "episodes": 1, "final_episodes": 1}
    for name, agent in sorted(known_agents().items()):
        small = {"hidden": (4,), "batch_size": 8, "warmup": 8, "capacity": 100, "rollout": 20}
        settings = {key: value for key, value in small.items() if key in agent.config.__dataclass_fields__}
        with contextlib.suppress(HvclError):
            found[f"rl {name}"] = RLConfig.make("classic", name, (1,), protocol, settings)
    return found


def kills(until: float, seed: int, fail: Report) -> dict[str, int]:
    """Runs that are ended at random moments."""
    moments, counts = random.Random(seed), Counter[str]()
    every = experiments()
    with tempfile.TemporaryDirectory() as place:
        while time.monotonic() < until:
            name = moments.choice(sorted(every))
            config = every[name]
            whole, broken = (RunFolder(Path(place) / f"{kind}-{counts['runs']}") for kind in ("whole", "broken"))
            for folder in (whole, broken):
                folder.prepare(config, config.facts(), resume=False, force=False)
            begin = time.monotonic()
            if _wait(_start(whole, None), None) != 0:
                fail(f"{name}: an undisturbed run failed")
                continue
            duration = time.monotonic() - begin
            for attempt in range(30):
                ending = moments.choice(ENDINGS) if attempt < 29 else None
                code = _wait(_start(broken, ending), ending, moments.uniform(0, duration))
                if code == 0:
                    break
                counts["kills"] += 1
                counts[str(ending)] += 1
            if _numbers(whole) != _numbers(broken):
                fail(f"{name}: another end after kills (seed {seed}, run {counts['runs']})")
            if left := [path.name for path in broken.path.rglob(".*")]:
                fail(f"{name}: left behind: {left}")
            counts["runs"] += 1
    return dict(counts)


def _start(folder: RunFolder, ending: str | None) -> int:
    """A child that works on the run; it ends itself where the disk or the memory is used up."""
    child = os.fork()
    if child:
        return child
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            if ending == "full disk":
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            if ending == "memory":
                used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, used + 2**20))
            run_seed(folder, 1, checkpoint_seconds=0.0)
        os._exit(0)
    except BaseException:
        os._exit(1)


def _wait(child: int, ending: str | None, seconds: float = 0.0) -> int:
    if ending in ("SIGKILL", "SIGTERM", "SIGINT"):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status
            time.sleep(0.001)
        os.kill(child, signal.Signals[ending])
    return os.waitpid(child, 0)[1]


def _numbers(folder: RunFolder) -> tuple[Any, bytes]:
    result = folder.seed(1).result() or {}
    return {name: value for name, value in result.items() if name != "seconds"}, folder.seed(1).metrics_path.read_bytes()


def commands(until: float, seed: int, fail: Report) -> dict[str, int]:
    """Command lines."""
    choices, counts = random.Random(seed), Counter[str]()
    # but those that are long by nature, or wait for somebody
    known = [(name, entry) for name, entry in entries() if name not in ("serve", "reproduce", "demo", "check", "rl")]
    with tempfile.TemporaryDirectory() as place:
        while time.monotonic() < until:
            words = _words(choices, *choices.choice(known))
            code, error = _run(words, Path(place))
            counts["commands"] += 1
            counts[f"exit code {code}"] += 1
            lines = [line for line in error.splitlines() if line.startswith("hvcl: ")]
            if code not in (0, 1, 2) or "Traceback" in error or (code == 2 and len(lines) != 1):
                fail(f"hvcl {' '.join(map(repr, words))}: exit code {code}: {error[-300:]}")
    return dict(counts)


def _words(choices: random.Random, name: str, entry: Entry) -> list[str]:
    """A command line that is nearly right."""
    small = {
        "run": ["split-digits", "--epochs", "1"],
        "compare": ["split-digits", "--methods", "naive", "--budget", "quick", "--seeds", "1"],
        "rl run": ["--steps", "20", "--evaluate-every", "10", "--episodes", "1", "--final-episodes", "1"],
    }
    words = [*name.split(), *small.get(name, [])]
    method = choices.choice(sorted(entry.methods) or [entry.default])
    if method and choices.random() < 0.5:
        words += ["--method", method]
    options = entry.options | entry.methods.get(method, {})
    for option in choices.choices(sorted(options), k=choices.randint(0, 3)) if options else []:
        words += [option] if options[option] is None else [option, choices.choice([*ODD, *(options[option] or ())])]
    for _ in range(choices.choice([0, 0, 0, 1])):
        words.insert(choices.randint(1, len(words)), choices.choice([*ODD, *entry.words]))
    return words


def _run(words: list[str], place: Path) -> tuple[int, str]:
    """Exit code and standard error; a command that never ends has the number of the signal that ended it."""
    error = place / "stderr"
    child = os.fork()
    if not child:
        os.chdir(place)
        for number, path in ((1, os.devnull), (2, str(error))):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["HVCL_DATA"] = str(place / "no-data")
        signal.alarm(LONGEST)
        try:
            code = main(words)
        except BaseException:
            traceback.print_exc()
            code = 70
        sys.stderr.flush()
        os._exit(code)
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), error.read_text(errors="replace")


PARTS: dict[str, Callable[[float, int, Report], dict[str, int]]] = {"kills": kills, "commands": commands}


def torture(parts: list[str], minutes: float, seed: int, fail: Report) -> dict[str, Any]:
    """Each part for its share of the time; what was done."""
    done = {}
    for name in parts:
        begin = time.monotonic()
        done[name] = PARTS[name](begin + 60 * minutes / len(parts), seed, fail)
        print(f"{name}: {done[name]} in {time.monotonic() - begin:.0f} s", flush=True)
    return done


def run_torture() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Kills, command lines.")
    parser.add_argument("--minutes", type=float, default=60.0, help="altogether (60)")
    parser.add_argument("--only", choices=tuple(PARTS), help="one part")
    parser.add_argument("--seed", type=int, default=0, help="of all choices (0)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="figures as JSON")
    options = parser.parse_args()
    failures: list[str] = []

    def fail(what: str) -> None:
        failures.append(what)
        print(f"FAILED {what}", flush=True)

    done = torture([options.only] if options.only else list(PARTS), options.minutes, options.seed, fail)
    if options.output:
        options.output.write_text(json.dumps({"seed": options.seed, "done": done, "failures": failures}, indent=1) + "\n")
    print(f"{len(failures)} failures")
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(run_torture())
