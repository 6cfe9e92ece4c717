"""Cost of MoVE layers, and of other libraries' Bayesian layers, over plain torch.nn layers of the same shape.

Forward, backward and update, the KL in the loss; one thread; CPU time; every figure is the median over rounds of the ratio to
the plain network, timed right beside it. `make bench-layers` runs all of it and writes docs/speed/layers.json.
"""

from __future__ import annotations

import argparse
import fnmatch
import gc
import importlib.metadata
import inspect
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measure import PAGE, Contest, environment, interleave, one_thread, quartiles, summary, verdict, write_json
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.layers import MoVEConv2d, MoVELayer, MoVELinear, sampling
from hvcl.networks import build_network
from hvcl.objective import Objective
from hvcl.ops import load as load_library
from hvcl.optim import VariationalAdam

LEARNING_RATE = 1e-5
"""Small: the networks, and where their gates send the examples, stay as they are. The cost does not depend on it."""
NUM_DATA = 12_000
"""Examples of a task, for the weight of the KL."""
CHANNELS = (8, 16, 32, 64, 128)
STEPS = 8
"""Steps of one turn: a multiple of Objective's diversity_every, so that every turn pays its share."""
BATCHES = 4
"""Different batches, in turn."""
PEERS = ("bayesian-torch", "blitz-bayesian-pytorch", "torchbnn")

Step = Callable[[], object]


# -- networks -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A problem size: what a contestant and its plain reference share."""

    kind: str = "mlp"
    width: int = 256
    batch: int = 256

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (784,) if self.kind == "mlp" else (3, 32, 32)

    def network(self, **layers: Any) -> nn.Sequential:
        if self.kind == "mlp":
            layers.pop("conv", None)
            return build_network(self.input_shape, 2, hidden=(self.width, self.width), **layers)
        return build_network(self.input_shape, 2, hidden=(), channels=CHANNELS, **layers)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Standard normal inputs and random labels, forever."""
        random = torch.Generator().manual_seed(1)
        pairs = [
            (
                torch.randn(self.batch, *self.input_shape, generator=random),
                torch.randint(0, 2, (self.batch,), generator=random),
            )
            for _ in range(BATCHES)
        ]
        return itertools.cycle(pairs)


@dataclass
class Trainee:
    """A network, and one step of its training."""

    network: nn.Module
    step: Step
    experts_used: list[list[int]] = field(default_factory=list)

    def note_experts(self) -> None:
        """How many experts each layer's gate chose in the last batch."""
        used = []
        for layer in self.network.modules():
            if isinstance(layer, MoVELayer):
                log_probabilities = layer.gate_log_probabilities
                used.append(1 if log_probabilities is None else int(log_probabilities.argmax(1).unique().numel()))
        if used:
            self.experts_used.append(used)


def training(network: nn.Module, shape: Shape, optimizer: torch.optim.Optimizer, loss: Callable[..., Tensor]) -> Trainee:
    data = shape.batches()

    def step() -> None:
        x, y = next(data)
        value = loss(network, x, y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    return Trainee(network, step)


def fused_adam(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, fused=True)


def plain(shape: Shape) -> Trainee:
    network = shape.network()
    return training(network, shape, fused_adam(network), lambda net, x, y: F.cross_entropy(net(x), y))


@dataclass(frozen=True)
class Ours:
    """MoVE layers with these options."""

    estimator: str = "flipout"
    sigma: str = "weight"
    experts: int = 2
    diversity: bool = True
    optimizer: str = "variational"
    """"variational" (VariationalAdam), "lazy" (VariationalAdam that skips unused experts), "adam" (torch's, fused)."""
    used: int | None = None
    """The gates' biases let only so many experts be chosen; None: the gates are as they start."""

    @property
    def is_fast_mode(self) -> bool:
        return self.estimator == "local" and self.sigma == "unit"

    @property
    def name(self) -> str:
        parts = [self.estimator, self.sigma, f"{self.experts}"]
        parts += ["diversity"] * self.diversity + [self.optimizer] * (self.optimizer != "variational")
        return "/".join(parts)

    def facts(self) -> dict[str, Any]:
        return {
            "library": "hvcl",
            "estimator": self.estimator,
            "sigma": self.sigma,
            "experts": self.experts,
            "diversity": self.diversity,
            "optimizer": self.optimizer,
            "fast_mode": self.is_fast_mode,
        }

    def network(self, shape: Shape) -> nn.Sequential:
        options: dict[str, Any] = {"experts": self.experts, "estimator": self.estimator, "sigma": self.sigma}
        conv = partial(MoVEConv2d, kernel_size=3, stride=2, padding=1, **options)
        network = shape.network(dense=partial(MoVELinear, **options), conv=conv)
        spread_gates(network, next(shape.batches())[0], self.used)
        return network

    def __call__(self, shape: Shape) -> Trainee:
        network = self.network(shape)
        weights: dict[str, float] = {"gate_kl": 0.002, "expert_kl": 0.75, "conditional_entropy": 0.01}
        objective = Objective(**weights, diversity=0.01 if self.diversity else 0.0)
        optimizer: torch.optim.Optimizer
        if self.optimizer == "adam":
            optimizer = fused_adam(network)
        else:
            optimizer = VariationalAdam(network, LEARNING_RATE, lazy=self.optimizer == "lazy")

        def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return objective(-F.cross_entropy(net(x), y), net, num_data=NUM_DATA).total

        return training(network, shape, optimizer, loss)


@torch.no_grad()
def spread_gates(network: nn.Sequential, x: Tensor, used: int | None) -> None:
    """Give every gate's logits mean 0 and variance 1 on `x`, so that the batch spreads over all experts, or over `used` of them.

    Without it, gates on random images choose one expert: pooled noise is nearly the same for all of them. The logits are read
    off the layer's log-probabilities, which fix them up to a shift of each row that no choice depends on.
    """
    for layer in network:
        if isinstance(layer, MoVELayer) and layer.gate is not None:
            layer(x)
            log_probabilities = layer.gate_log_probabilities
            assert log_probabilities is not None
            logits = log_probabilities - log_probabilities.mean(1, keepdim=True)
            spread, mean = torch.std_mean(logits, 0)
            gate = layer.gate
            gate.weight.copy_((gate.weight - gate.weight.mean(0)) / spread.unsqueeze(1))
            gate.bias.copy_((gate.bias - gate.bias.mean() - mean) / spread)
            if used is not None:
                gate.bias[used:] -= 12.0  # never chosen, and no probability is denormal
        x = layer(x)


class _ReturnsKL(nn.Module):
    """bayesian-torch's layers return (output, KL): keeps the KL, so that the layer fits into nn.Sequential."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y, self.kl = self.layer(x)
        return y


def bayesian_torch_network(shape: Shape, variant: str) -> nn.Sequential:
    from bayesian_torch import layers

    dense, conv = getattr(layers, f"Linear{variant}"), getattr(layers, f"Conv2d{variant}")
    return shape.network(
        dense=lambda i, o: _ReturnsKL(dense(i, o)),
        conv=lambda i, o: _ReturnsKL(conv(i, o, kernel_size=3, stride=2, padding=1)),
    )


def bayesian_torch(shape: Shape, variant: str) -> Trainee:
    """Its documentation: sum the KL that every layer returns, divide by the batch size, add the cross-entropy."""
    network = bayesian_torch_network(shape, variant)
    wrapped = [module for module in network.modules() if isinstance(module, _ReturnsKL)]

    def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(net(x), y) + sum(module.kl for module in wrapped) / len(x)

    return training(network, shape, fused_adam(network), loss)


def blitz_network(shape: Shape) -> nn.Sequential:
    from blitz.modules import BayesianConv2d, BayesianLinear

    conv = partial(BayesianConv2d, kernel_size=(3, 3), stride=2, padding=1)
    return shape.network(dense=BayesianLinear, conv=conv)


def blitz(shape: Shape) -> Trainee:
    """Its documentation: `sample_elbo` of a class that `variational_estimator` decorates, here with one sample."""
    from blitz.utils import variational_estimator

    @variational_estimator
    class Network(nn.Sequential):
        pass

    network = Network(*blitz_network(shape))
    criterion = nn.CrossEntropyLoss()

    def loss(net: Any, x: Tensor, y: Tensor) -> Tensor:
        return net.sample_elbo(inputs=x, labels=y, criterion=criterion, sample_nbr=1, complexity_cost_weight=1 / NUM_DATA)

    return training(network, shape, fused_adam(network), loss)


def torchbnn_network(shape: Shape) -> nn.Sequential:
    import torchbnn

    conv = partial(torchbnn.BayesConv2d, 0, 0.1, kernel_size=3, stride=2, padding=1)
    return shape.network(dense=partial(torchbnn.BayesLinear, 0, 0.1), conv=conv)


def torchbnn(shape: Shape) -> Trainee:
    """Its documentation: `BKLLoss(reduction="mean")` times a weight is added to the cross-entropy."""
    import torchbnn as library

    network = torchbnn_network(shape)
    kl = library.BKLLoss(reduction="mean", last_layer_only=False)
    return training(network, shape, fused_adam(network), lambda net, x, y: F.cross_entropy(net(x), y) + 0.1 * kl(net))


PEER_TRAINING: dict[str, Callable[[Shape], Trainee]] = {
    "bayesian-torch Flipout": partial(bayesian_torch, variant="Flipout"),
    "bayesian-torch Reparameterization": partial(bayesian_torch, variant="Reparameterization"),
    "blitz": blitz,
    "torchbnn": torchbnn,
}


# -- cases --------------------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """One row: a contestant, its plain reference, and what to say about it."""

    name: str
    build: Callable[[], Trainee]
    reference: Callable[[], Trainee]
    reference_key: tuple[object, ...]
    facts: dict[str, Any]
    repeats: int = STEPS
    goal: float | None = None
    experts: tuple[float, float] | None = None
    """Each layer must use so many experts, at least and at most, for the row to measure what it says."""


@dataclass
class Group:
    """Cases that are measured in turns."""

    title: str
    cases: list[Case]


def training_case(place: str, shape: Shape, ours: Ours, goal: float | None = None, repeats: int = STEPS, **facts: Any) -> Case:
    return Case(
        f"{place}/{ours.name}",
        partial(ours, shape),
        partial(plain, shape),
        ("train", shape),
        ours.facts() | facts,
        repeats,
        goal,
        expected_experts(ours, shape),
    )


def expected_experts(ours: Ours, shape: Shape) -> tuple[float, float]:
    """All of them, or those that are not excluded; a small batch cannot use many."""
    available = min(ours.experts, ours.used or ours.experts)
    return (0.75 if shape.batch >= 32 * available else 0.6) * available, available


def peer_case(place: str, shape: Shape, peer: str, repeats: int = STEPS, **facts: Any) -> Case:
    return Case(
        f"{place}/{peer}",
        partial(PEER_TRAINING[peer], shape),
        partial(plain, shape),
        ("train", shape),
        {"library": peer, "experts": 1, **facts},
        repeats,
    )


def layer_goal(kind: str, ours: Ours) -> float | None:
    if ours.optimizer != "variational":
        return None
    if kind == "conv":
        return {2: 2.0, 8: 3.0}.get(ours.experts) if ours.estimator == "flipout" and ours.sigma == "weight" else None
    if ours.is_fast_mode:
        return {1: 1.6, 2: 2.2, 8: 3.5}.get(ours.experts)
    return {2: 3.3, 8: 5.0}.get(ours.experts) if ours.estimator == "flipout" and ours.sigma == "weight" else None


def layer_cases(kind: str, quick: bool) -> list[Case]:
    """Every estimator, sigma and number of experts; the plain path; the peers."""
    shape = Shape(kind)
    experts = (1, 2, 8) if quick else (1, 2, 4, 8)
    options = [
        Ours(estimator, sigma, m, diversity)
        for estimator, sigma, m, diversity in itertools.product(
            ("flipout", "local", "mean"), ("weight", "unit"), experts, (True, False)
        )
        if (m > 1 or not diversity) and (kind == "mlp" or diversity or m == 1)
    ]
    if quick:
        options = [o for o in options if (o.diversity or o.experts == 1) and o.estimator != "mean"]
    modes = (("flipout", "weight"), ("local", "unit"))
    sizes = ((2,) if quick else (1, 2, 8)) if kind == "mlp" else (2,)
    options += [Ours(estimator, sigma, m, m > 1, "adam") for (estimator, sigma), m in itertools.product(modes, sizes)]
    cases = [training_case(kind, shape, ours, layer_goal(kind, ours)) for ours in options]
    return cases + [peer_case(kind, shape, peer) for peer in PEER_TRAINING]


def expert_groups(quick: bool) -> list[Group]:
    """Cost against the number of experts: all of them used, and four of them used with the lazy update."""
    shape = Shape()
    everyone = (1, 8, 64) if quick else (1, 2, 4, 8, 16, 32, 64)
    few = (8, 64) if quick else (4, 8, 16, 32, 64)
    groups = []
    for estimator, sigma in (("flipout", "weight"), ("local", "unit")):
        mode = f"{estimator}, sigma per {sigma}"
        spread = [Ours(estimator, sigma, m, m > 1) for m in everyone]
        cases = [training_case("experts", shape, ours, curve=f"{mode}, all used", at=ours.experts) for ours in spread]
        groups.append(Group(f"experts, {mode}, all used", cases))
        for diversity in (False, True):
            words = "4 used, lazy" + (", diversity" if diversity else "")
            lazy = [Ours(estimator, sigma, m, diversity, "lazy", used=4) for m in few]
            cases = [training_case("experts", shape, ours, curve=f"{mode}, {words}", at=ours.experts) for ours in lazy]
            groups.append(Group(f"experts, {mode}, {words}", cases))
    return groups


def size_groups(quick: bool) -> list[Group]:
    """Cost against width and batch size."""
    contestants = [Ours("flipout", "weight", m) for m in (2, 8)] + [Ours("local", "unit", m) for m in (2, 8)]
    widths = (128, 1024) if quick else (128, 256, 512, 1024)
    batches = (32, 1024) if quick else (32, 64, 128, 256, 512, 1024)
    groups = []
    for what, shapes in (("width", [Shape(width=w) for w in widths]), ("batch", [Shape(batch=b) for b in batches])):
        cases = []
        for shape in shapes:
            at = getattr(shape, what)
            for ours in contestants:
                words = "fast mode" if ours.is_fast_mode else "flipout"
                curve = f"{words}, {ours.experts} experts"
                cases.append(training_case(f"{what} {at}", shape, ours, curve=curve, at=at))
            cases.append(
                peer_case(f"{what} {at}", shape, "bayesian-torch Flipout", curve="bayesian-torch Flipout, 1 expert", at=at)
            )
        groups.append(Group(what, cases))
    return groups


def inference(network: nn.Module, shape: Shape, samples: bool) -> Trainee:
    """A forward pass in evaluation mode; `samples`: MoVE layers draw weights instead of using the means."""
    network.eval()
    data = shape.batches()

    def step() -> None:
        with torch.no_grad(), sampling(network) if samples else nullcontext():
            network(next(data)[0])

    return Trainee(network, step)


def frozen_blitz(shape: Shape) -> nn.Sequential:
    """Blitz's switch to posterior means."""
    network = blitz_network(shape)
    for module in network.modules():
        if hasattr(module, "freeze"):
            module.freeze = True
    return network


def inference_cases(kind: str) -> list[Case]:
    """By posterior means, and by one sample of the weights; bayesian-torch and torchbnn always sample."""
    shape = Shape(kind)
    entries: list[tuple[str, Callable[[Shape], nn.Module], str, int, bool]] = []
    for m in (1, 2, 8):
        flipout, fast = Ours("flipout", "weight", m), Ours("local", "unit", m)
        entries.append((f"means/{m}", flipout.network, "hvcl", m, False))
        entries.append((f"sample, flipout/{m}", flipout.network, "hvcl", m, True))
        entries.append((f"sample, fast mode/{m}", fast.network, "hvcl", m, True))
    entries.append(("means/blitz", frozen_blitz, "blitz", 1, False))
    entries.append(("sample/blitz", blitz_network, "blitz", 1, True))
    entries.append(("sample/torchbnn", torchbnn_network, "torchbnn", 1, True))
    flipout = partial(bayesian_torch_network, variant="Flipout")
    entries.append(("sample/bayesian-torch Flipout", flipout, "bayesian-torch Flipout", 1, True))

    def build(network: Callable[[Shape], nn.Module], samples: bool) -> Trainee:
        return inference(network(shape), shape, samples)

    return [
        Case(
            f"inference {kind}/{name}",
            partial(build, network, samples and library == "hvcl"),
            partial(build, Shape.network, False),
            ("inference", shape),
            {"library": library, "experts": experts, "samples": samples},
            repeats=32 if kind == "mlp" else 8,
            experts=(0.75 * experts, experts),
        )
        for name, network, library, experts, samples in entries
    ]


def all_groups(quick: bool) -> list[Group]:
    return [
        Group("MLP 784-256-256-2, batch 256", layer_cases("mlp", quick)),
        Group("convolutions 3-8-16-32-64-128 on 32x32, batch 256", layer_cases("conv", quick)),
        *expert_groups(quick),
        *size_groups(quick),
        *[Group(f"inference, {kind}, batch 256", inference_cases(kind)) for kind in (("mlp",) if quick else ("mlp", "conv"))],
    ]


# -- measuring ----------------------------------------------------------------------------------------------------------------


def measure_group(group: Group, rounds: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    references: dict[tuple[object, ...], Trainee] = {}
    contests: list[tuple[Case, Trainee, Contest]] = []
    rows = []
    gc.collect()  # the networks of the group before
    for case in group.cases:
        try:
            if case.reference_key not in references:
                references[case.reference_key] = case.reference()
            trainee = case.build()
            for _ in range(2):
                trainee.step()
                references[case.reference_key].step()
        except Exception as error:
            print(f"  {case.name} does not run: {type(error).__name__}: {error}", file=sys.stderr)
            rows.append({"name": case.name, "group": group.title, "error": f"{type(error).__name__}: {error}"})
            continue
        contest = Contest(case.name, trainee.step, references[case.reference_key].step, case.repeats)
        contests.append((case, trainee, contest))

    def after_round() -> None:
        for _, trainee, _ in contests:
            trainee.note_experts()

    interleave([contest for _, _, contest in contests], rounds, after_round)
    for case, trainee, contest in contests:
        row: dict[str, Any] = {"name": case.name, "group": group.title} | case.facts
        row |= summary(contest.ratios) | {"rounds": rounds, "milliseconds": round(1e3 * quartiles(contest.seconds)[1], 3)}
        row["plain_milliseconds"] = round(1e3 * quartiles(contest.reference_seconds)[1], 3)
        if trainee.experts_used:
            used = [sum(layer) / len(layer) for layer in zip(*trainee.experts_used, strict=True)]
            row["experts_used"] = [round(count, 1) for count in used]
            if case.experts and not all(case.experts[0] <= count <= case.experts[1] for count in used):
                error = f"its layers use {row['experts_used']} experts, not {case.experts[0]:.1f} to {case.experts[1]}"
                print(f"  {case.name} does not measure what it says: {error}", file=sys.stderr)
                rows.append({"name": case.name, "group": group.title, "error": error})
                continue
        if case.goal is not None:
            row |= {"goal": case.goal, "met": row["ratio"] <= case.goal}
        row["ratios"] = [round(ratio, 4) for ratio in contest.ratios]
        rows.append(row)
    return rows


# -- memory -------------------------------------------------------------------------------------------------------------------


def memory_cases(quick: bool) -> dict[str, tuple[Callable[[], Trainee], dict[str, Any]]]:
    found: dict[str, tuple[Callable[[], Trainee], dict[str, Any]]] = {}
    for kind in ("mlp",) if quick else ("mlp", "conv"):
        shape = Shape(kind)
        found[f"memory {kind}/plain"] = partial(plain, shape), {"library": "torch.nn"}
        modes = (("flipout", "weight"), ("local", "unit"))
        options = [Ours(estimator, sigma, m, m > 1) for (estimator, sigma), m in itertools.product(modes, (1, 2, 8))]
        options += [Ours("flipout", "weight", 8, True, "adam")]
        for ours in options:
            found[f"memory {kind}/{ours.name}"] = partial(ours, shape), ours.facts()
        for peer, build in PEER_TRAINING.items():
            found[f"memory {kind}/{peer}"] = partial(build, shape), {"library": peer, "experts": 1}
    return found


def _status(field_name: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field_name + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field_name}")


def peak_memory(build: Callable[[], Trainee], steps: int = STEPS + 1) -> int:
    """Bytes that building and training a network take at most, on top of a process that has trained a tiny one."""
    for tiny in (build_network((4,), 2, hidden=(4,)), build_network((3, 8, 8), 2, hidden=(), channels=(4,))):
        optimizer = fused_adam(tiny)
        tiny(torch.randn(2, *((4,) if isinstance(tiny[0], nn.Flatten) else (3, 8, 8)))).sum().backward()
        optimizer.step()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from what is resident now
    before = _status("VmRSS")
    trainee = build()
    for _ in range(steps):
        trainee.step()
    return _status("VmHWM") - before


def measure_memory(pattern: str | None, quick: bool) -> list[dict[str, Any]]:
    """A new process for every case: nothing that another one left behind is counted or reused."""
    rows: list[dict[str, Any]] = []
    if not Path("/proc/self/clear_refs").exists():
        print("  peak memory is not measured: it needs Linux's /proc", file=sys.stderr)
        return rows
    for name, (_, facts) in memory_cases(quick).items():
        if pattern and not matches(name, pattern) and not name.endswith("/plain"):
            continue
        command = [sys.executable, __file__, "--memory-of", name]
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
            print(f"  {name} does not run: {reason}", file=sys.stderr)
            rows.append({"name": name, "group": "memory", "error": reason})
            continue
        rows.append({"name": name, "group": "memory", **facts, "megabytes": round(int(result.stdout) / 1e6, 1), "rounds": 1})
    plain_of = {row["name"].split("/")[0]: row["megabytes"] for row in rows if row["name"].endswith("/plain")}
    for row in rows:
        kind = row["name"].split("/")[0]
        if "megabytes" in row and kind in plain_of:
            row["ratio"] = round(row["megabytes"] / plain_of[kind], 2)
    return rows


# -- goals --------------------------------------------------------------------------------------------------------------------


def goals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every goal with its value; a goal whose rows were not measured is left out."""
    by_name = {row["name"]: row for row in rows if "ratios" in row}
    found: list[dict[str, Any]] = []

    def add(text: str, value: float, goal: float, strict: bool = False) -> None:
        met = value < goal if strict else value <= goal
        found.append({"name": text, "value": round(value, 3), "goal": goal, "met": met, "strict": strict})

    def against(ours: str, theirs: str) -> float | None:
        """Median over rounds of the quotient of two rows of one group."""
        if ours not in by_name or theirs not in by_name:
            return None
        pairs = zip(by_name[ours]["ratios"], by_name[theirs]["ratios"], strict=True)
        return quartiles(a / b for a, b in pairs)[1]

    for row in by_name.values():
        if "goal" in row:
            kind = row["name"].split("/")[0]
            words = "fast mode" if row["fast_mode"] else f"{row['estimator']}, sigma per {row['sigma']}"
            extra = ", diversity" if row["diversity"] else ""
            add(f"{kind}: {words}, experts: {row['experts']}{extra}; over plain", row["ratio"], row["goal"])
    for experts, goal in ((2, 2.0), (8, 3.0)):
        conv = [
            row
            for name, row in by_name.items()
            if name.startswith("conv/")
            and (row["experts"], row.get("optimizer")) == (experts, "variational")
            and row["estimator"] in ("flipout", "local")
        ]
        if conv:
            best = min(conv, key=lambda row: row["ratio"])
            words = f"{best['estimator']}, sigma per {best['sigma']}"
            add(f"conv: best estimator ({words}), experts: {experts}, diversity; over plain", best["ratio"], goal)
    for kind in ("mlp", "conv"):
        for variant in ("Flipout", "Reparameterization"):
            value = against(f"{kind}/flipout/weight/2/diversity", f"{kind}/bayesian-torch {variant}")
            if value is not None:
                add(f"{kind}: flipout, two experts, diversity; over bayesian-torch {variant}, one expert", value, 1.0, True)
        for peer in PEER_TRAINING:
            value = against(f"{kind}/local/unit/1", f"{kind}/{peer}")
            if value is not None:
                add(f"{kind}: fast mode, one expert; over {peer}", value, 1.0, True)
    for mode, words in (("flipout/weight", "flipout"), ("local/unit", "fast mode")):
        for extra in ("", "/diversity"):
            value = against(f"experts/{mode}/64{extra}/lazy", f"experts/{mode}/8{extra}/lazy")
            if value is not None:
                text = f"mlp: {words}, 4 experts used, lazy{extra.replace('/', ', ')}: 64 experts over 8"
                add(text, value, 1.5)
    return found


# -- output -------------------------------------------------------------------------------------------------------------------


def print_rows(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}\n{'':48} {'ratio':>7} {'quartiles':>15} {'ms':>9}  {'goal':>5} {'met':4} experts used by each layer")
    for row in rows:
        if "error" in row:
            print(f"{row['name']:<48}   error")
        elif "megabytes" in row:
            ratio = f"{row['ratio']:7.2f}" if "ratio" in row else ""
            print(f"{row['name']:<48} {ratio:>7} {'':>15} {row['megabytes']:>6.1f} MB")
        else:
            spread = f"{row['ratio_q1']:.2f} - {row['ratio_q3']:.2f}"
            goal = f"{row['goal']:.1f}" if "goal" in row else ""
            used = " ".join(f"{n:g}" for n in row.get("experts_used", []))
            print(
                f"{row['name']:<48} {row['ratio']:7.2f} {spread:>15} {row['milliseconds']:9.2f}  "
                f"{goal:>5} {verdict(row.get('met')):4} {used}"
            )
    sys.stdout.flush()


def print_goals(found: list[dict[str, Any]]) -> None:
    print("\ngoals")
    for goal in found:
        sign = "<" if goal["strict"] else "<="
        print(f"{goal['name']:<96} {goal['value']:6.2f}  {sign:>2} {goal['goal']:.1f}  {verdict(goal['met'])}")


def matches(name: str, pattern: str) -> bool:
    return pattern in name or fnmatch.fnmatch(name, pattern)


def facts_of_objective() -> int | None:
    """Diversity is computed every so many steps; 1 where Objective has no say in it."""
    parameter = inspect.signature(Objective).parameters.get("diversity_every")
    return 1 if parameter is None else parameter.default


def has_kernels() -> bool:
    return load_library() is not None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, help="rounds: turns of every contestant (15; quick: 3)")
    parser.add_argument("--only", metavar="PATTERN", help="rows whose name contains PATTERN, or matches it with * and ?")
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds: a look, not a measurement")
    parser.add_argument("--output", type=Path, help="where to write (docs/speed/layers.json; with --only: nowhere)")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args()
    one_thread()
    if options.memory_of:
        print(peak_memory(memory_cases(quick=False)[options.memory_of][0]))
        return 0
    rounds = options.rounds or (3 if options.quick else 15)
    output = options.output or (None if options.only else PAGE / "layers.json")
    begin = time.monotonic()
    rows: list[dict[str, Any]] = []
    for group in all_groups(options.quick):
        if options.only:
            group.cases = [case for case in group.cases if matches(case.name, options.only)]
        if group.cases:
            measured = measure_group(group, rounds)
            print_rows(group.title, measured)
            rows += measured
    if not options.only or "memory" in options.only:
        measured = measure_memory(options.only, options.quick)
        print_rows("peak memory of training, on top of the bare process", measured)
        rows += measured
    if not rows:
        print(f"nothing is called {options.only!r}", file=sys.stderr)
        return 2
    found = goals(rows)
    print_goals(found)
    seconds = time.monotonic() - begin
    print(f"\n{rounds} rounds, {seconds:.0f} s, diversity every {facts_of_objective()} steps, compiled kernels: {has_kernels()}")
    if output:
        versions = {name: importlib.metadata.version(name) for name in PEERS}
        facts = environment(peers=versions, diversity_every=facts_of_objective(), compiled_kernels=has_kernels())
        document = {"quick": options.quick, "rounds": rounds, "environment": facts, "goals": found, "rows": rows}
        write_json(output, document)
        print(f"written: {output}")
    return 1 if any("error" in row for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
