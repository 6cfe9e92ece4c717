"""The committed figures of the learners that replay what they generate.

    .venv/bin/python -m experiments.generative.figures split-mnist --methods dgr dgr-distill rtf hvcl-replay --seeds 1 2 3

Domain-IL, boundaries, no stored examples; the settings are the benchmark's defaults for each method, which were chosen on
held-out training data of seed 0 (configuration.py). Runs are kept in --runs (every seed resumes where it stopped), their
figures go to results/ when all seeds are done, and a report with the generated pictures to --runs/report.html.

`--variant paper` runs `hvcl-replay` on MNIST as the paper's appendix has it (PAPER below: one VAE for all tasks, no conditions,
10,000 generated examples for a task, half the weight each, 150 epochs) and writes to results/generative/paper instead. `--variant
without` runs its classifier without any replay (`hvcl` with the same settings and epochs), to see what the replay gives, and
writes to results/generative/without.
"""

import argparse
import dataclasses
from pathlib import Path

from hvcl.learners.methods.hvcl import HVCLConfig
from hvcl.report.page import write_report
from hvcl.results import cell_of, save_cell
from hvcl.runs import RunConfig, RunFolder
from hvcl.runs.seed import run_seed

RESULTS = Path(__file__).resolve().parents[2] / "results"
METHODS = ("dgr", "dgr-distill", "rtf", "bir", "curl", "hvcl-replay")
PAPER = {
    # the appendix: one VAE of one expert a layer, 10,000 samples made once, its betas and diversity; the classifier's step size
    "separate": False,
    "conditional": False,
    "balance": "half",
    "refresh": False,
    "generated": 10_000,
    "vae_experts": 1,
    "beta_gate": 0.002,
    "beta_expert": 0.75,
    "vae_beta_expert": 0.75,
    "diversity": 0.01,
    "schedule": "cyclic",
    "estimator": "flipout",
    "sigma": "weight",
    "learning_rate": 6e-4,
    # ours, where the paper is silent: soft labels, the rate of dropout, the VAE's step size (the classifier's), the entropy's
    # weight
    "labels": "soft",
    "temperature": 1.0,
    "dropout": 0.2,
    "vae_learning_rate": 6e-4,
    "conditional_entropy": 0.01,
}
PAPER_STREAM = {"epochs": 150, "batch_size": 256}
VARIANTS = {"best": {}, "paper": PAPER, "without": {}}


def without_replay(benchmark, stream):
    """`hvcl` with the very classifier and epochs that `hvcl-replay` has."""
    same = RunConfig.make(benchmark, "hvcl-replay", (1,), stream, {})
    shared = {field.name: getattr(same.learner, field.name) for field in dataclasses.fields(HVCLConfig)}
    return {"epochs": same.stream.epochs, "batch_size": same.stream.batch_size} | stream, shared


def one(benchmark, method, seeds, runs, variant, scenario, stream):
    """All seeds of one method; returns the run's folder."""
    learner = VARIANTS[variant] if method == "hvcl-replay" else {}
    stream = (PAPER_STREAM if variant == "paper" and method == "hvcl-replay" else {}) | stream
    if variant == "without":
        method, (stream, learner) = "hvcl", without_replay(benchmark, stream)
    config = RunConfig.make(benchmark, method, seeds, {"scenario": scenario} | stream, learner)
    name = "-".join([benchmark, scenario, method, *([variant] if learner else [])])
    folder = RunFolder(runs / name)
    first = config.make_stream(seeds[0])
    facts = {"memory": config.make_learner(first, seeds[0]).memory, "task_names": [task.name for task in first.tasks]}
    folder.prepare(config, facts, resume=True, force=False)
    results = []
    for seed in seeds:
        results.append(run_seed(folder, seed))
        found = results[-1]
        bits = " ".join(f"{entry['inception_score']:.2f}/{entry['inception_bound']:.2f}" for entry in found["generation"])
        print(f"{name} seed {seed}: {100 * found['average_accuracy']:.2f} %, inception score {bits} bits", flush=True)
    if not config.stream.validation:  # figures on held-out training data choose settings, and are not committed
        print(save_cell(cell_of(folder.path, results), RESULTS / "generative" / variant if variant != "best" else RESULTS))
    return folder.path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--scenario", default="domain", choices=("domain", "class", "task"))
    parser.add_argument("--variant", default="best", choices=VARIANTS)
    parser.add_argument(
        "--validation", type=float, default=0.0, help="hold out this part of the training data instead of testing"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/generative"))
    options = parser.parse_args()
    stream = {"validation": options.validation} if options.validation else {}
    seeds = tuple(options.seeds)
    folders = [
        one(benchmark, method, seeds, options.runs, options.variant, options.scenario, stream)
        for benchmark in options.benchmarks
        for method in options.methods
    ]
    print(write_report(folders, options.runs / "report.html"))


if __name__ == "__main__":
    main()
