"""Where the time of a training step goes, and what the floor is.

    make bench-breakdown

The parts of a step of the MLP 784-256-256-2 (batch 256, all loss terms, diversity every eighth step) are timed where they happen,
by clocks put around the functions that do them, and given as multiples of the plain network's step in the same run. Matrix
products and update are also run alone, on the same shapes: the floor, what is left if everything else cost nothing.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections import defaultdict
from functools import partial
from typing import Any

import torch
from measure import PAGE, environment, write_json
from torch import nn

from hvcl.layers import MoVELinear
from hvcl.networks import build_network
from hvcl.objective import Objective
from hvcl.ops import dense, load
from hvcl.ops.adam import ExpertSteps
from hvcl.ops.library import Library
from hvcl.optim import VariationalAdam

BATCH, WIDTHS = 256, (784, 256, 256, 2)
CLOCK: dict[str, float] = defaultdict(float)
_open: list[float] = []


def put_clock(owner: Any, name: str, part: str) -> None:
    """Add the CPU time of a function, less that of timed functions inside it, to `part`."""
    original = getattr(owner, name)
    static = isinstance(owner, type) and isinstance(owner.__dict__.get(name), staticmethod)

    def timed(*arguments: Any, **options: Any) -> Any:
        _open.append(0.0)
        start = time.thread_time()
        try:
            return original(*arguments, **options)
        finally:
            took = time.thread_time() - start
            inside = _open.pop()
            CLOCK[part] += took - inside
            if _open:
                _open[-1] += took

    setattr(owner, name, staticmethod(timed) if static else timed)


def compiled() -> Library:
    """The library that the layers use."""
    library = load()
    if library is None:
        raise SystemExit("there is no compiled library: see the warning above")
    return library


def put_clocks() -> None:
    functions = compiled().functions
    put_clock(functions, "stack_forward", "layers, forward (compiled)")
    put_clock(functions, "stack_backward", "layers, backward (compiled)")
    for name in ("diversity", "repel"):
        put_clock(functions, name, "diversity (compiled)")
    put_clock(functions, "adam_experts", "weight gradients and update (compiled)")
    put_clock(VariationalAdam, "step", "optimiser around it")
    for name in ("forward", "backward"):
        put_clock(dense._Run, name, "layers, Python around the calls")
    put_clock(MoVELinear, "forward", "layers, Python around the calls")
    put_clock(Objective, "__call__", "terms of the objective")


def step_of(network: nn.Module, optimizer: torch.optim.Optimizer, objective: Objective | None) -> Any:
    x, y = torch.randn(BATCH, WIDTHS[0]), torch.randint(2, (BATCH,))

    def step() -> None:
        utility = -nn.functional.cross_entropy(network(x), y)
        loss = -utility if objective is None else objective(utility, network, 12_000).total
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def timed(function: Any, repeats: int) -> float:
    for _ in range(5):
        function()
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        function()
        times.append(time.thread_time() - start)
    return statistics.median(times)


def products_alone(estimator: str, repeats: int) -> float:
    """Forward, weight gradients and (but for the first layer) input gradients; twice for flipout."""
    pairs = []
    for i, o in itertools.pairwise(WIDTHS):
        x, w, g = torch.randn(BATCH, i), torch.randn(i, o), torch.randn(BATCH, o)
        pairs += [(x, w), (x.T, g)] + ([(g, w.T)] if i != WIDTHS[0] else [])

    def run() -> None:
        for a, b in pairs:
            a @ b

    return timed(run, repeats) * (2 if estimator == "flipout" else 1)


def update_alone(optimizer: VariationalAdam, step: Any, repeats: int) -> float:
    """The compiled update again and again, on gradients that are given: nothing is multiplied out."""
    recorded: list[Any] = []
    original = ExpertSteps.run

    def recording(steps: ExpertSteps, *arguments: Any) -> None:
        original(steps, *arguments)
        recorded.append((steps, arguments))

    ExpertSteps.run = recording  # type: ignore[method-assign]
    step()
    ExpertSteps.run = original  # type: ignore[method-assign]
    ((steps, arguments),) = recorded
    alive = []
    for layer, posterior in zip(steps.layers, optimizer.posteriors, strict=True):
        mean, noise = (1e-3 * torch.randn_like(posterior.mean) for _ in range(2))
        shared, weights = torch.randn_like(mean[0]), torch.full((posterior.experts,), 1e-3)
        alive.append((mean, noise, shared, weights))
        layer.products, layer.g_mean, layer.kl_weights = None, mean.data_ptr(), weights.data_ptr()
        if posterior.sigma_kind == "weight":
            layer.g_noise, layer.shared = noise.data_ptr(), shared.data_ptr()

    def update() -> None:
        for layer in steps.layers:
            layer.active = 1
        original(steps, *arguments)

    taken = timed(update, repeats)
    optimizer.load_state_dict(optimizer.state_dict())  # forget these gradients
    return taken


def measure(repeats: int) -> list[dict[str, Any]]:
    rows = []
    configurations = [("flipout", "weight", m) for m in (1, 2, 8)] + [("local", "unit", m) for m in (1, 2, 8)]
    contestants = []
    plain_network = build_network((WIDTHS[0],), 2)
    plain_step = step_of(plain_network, torch.optim.Adam(plain_network.parameters(), 1e-5, fused=True), None)
    plain = timed(plain_step, repeats)
    for estimator, sigma, experts in configurations:
        torch.manual_seed(0)
        layer = partial(MoVELinear, experts=experts, estimator=estimator, sigma=sigma)
        network = build_network((WIDTHS[0],), 2, dense=layer)  # type: ignore[arg-type]
        optimizer = VariationalAdam(network, 1e-5)
        step = step_of(network, optimizer, Objective(gate_kl=0.002, expert_kl=0.75, conditional_entropy=0.01, diversity=0.01))
        contestants.append((f"{estimator}, sigma per {sigma}, experts: {experts}", estimator, optimizer, step))
    floors = {
        name: (products_alone(estimator, repeats) / plain, update_alone(optimizer, step, repeats) / plain)
        for name, estimator, optimizer, step in contestants
    }
    put_clocks()
    for name, _, _, step in contestants:
        for _ in range(8):
            step()
        CLOCK.clear()
        start = time.thread_time()
        for _ in range(repeats):
            step()
        total = (time.thread_time() - start) / repeats
        plain = timed(plain_step, repeats)
        parts = {part: round(seconds / repeats / plain, 3) for part, seconds in CLOCK.items()}
        parts["everything else"] = round(total / plain - sum(parts.values()), 3)
        products, update = floors[name]
        floor = {"products alone": round(products, 3), "update alone": round(update, 3)}
        rows.append({"name": name, "total": round(total / plain, 3), "parts": parts, "floor": floor})
        print(name, rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=96, help="steps to average over (a multiple of eight)")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    write_json(PAGE / "breakdown.json", {"environment": environment(), "repeats": repeats, "rows": measure(repeats)})


if __name__ == "__main__":
    main()
