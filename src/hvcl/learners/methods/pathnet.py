r"""PathNet: evolution channels gradient descent (Fernando, Banarse, Blundell, Zwols, Ha, Rusu, Pritzel & Wierstra, 2017).

Every layer has M modules, of which a path takes up to N; what its modules m in G_l answer is added up,

    h_l = sum_{m in G_l} f( W_lm h_{l-1} + b_lm ) ,        outputs of task t:  V_t h_L + c_t ,

and each task has a head of its own. A genotype G has N numbers of modules for each layer, the same more than once if it comes to
that. For every task a population of P genotypes is drawn, and evolves by binary tournaments: two of them, drawn at random, are
trained for a number of batches, and their fitness is their accuracy on these; a copy of the winner takes the loser's place, in
which each number moves with probability 1 / (L N), by a whole number from -2 to 2 (counting on from the last module to the
first). At the end of a task the modules of its best path are frozen, and all others that no task has frozen begin anew; later
paths may pass through frozen modules, and learn the others.

Which path is best: the winner of the last tournament.

An example of task t is answered along the path of t, which nothing can change: nothing is forgotten. For that the task must be
known. In Task-IL it is told. Elsewhere, where PathNet has no answer, every path is asked, and the one answers that is surest of
the example, with the lowest entropy of p(y|x). In Class-IL a path's answers are among the labels that its task had. That is a
poor guide: a path is sure of what it has never seen as well.

`hidden` are units of a module, as `channels` are, so that the network has M times as many as others with the same settings, and a
step takes what two networks of N times as many would. Once all modules of a layer are frozen, tasks can only choose among them.

Deviates from the paper: both contestants learn from the same batches, one after the other in the paper; leaky ReLUs, Adam. What
Adam remembers of a module is kept over the tournaments of a task. The defaults are 8 genotypes and tournaments of 5 batches, for
tasks of some hundred batches; the paper has 64 genotypes and 50 batches, and more steps for a task than there are here, where 64
genotypes would stay all but untrained.

On a task-free stream (but in Task-IL) the first task never ends: its paths evolve on, and the best answers. In Task-IL a task
ends when another begins, and of a batch the examples of the task that has most are learned; a task that comes again, or comes
after the last that was announced, only learns its head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensor_like
from hvcl.learners.base import State
from hvcl.learners.generative import at_least_one
from hvcl.learners.gradient import GradientConfig, GradientLearner, Terms
from hvcl.learners.registry import register
from hvcl.networks import initialise, stages, trunk

STRIDE = 2
"""How far a mutation moves a module's number, at most."""


@dataclass(frozen=True)
class PathNetConfig(GradientConfig):
    """PathNet."""

    hidden: tuple[int, ...] = (20, 20, 20)
    """Units of a module of each dense layer."""
    modules: int = 10
    """M, the modules of a layer."""
    active: int = 3
    """N, the modules of a layer that a path takes at most."""
    population: int = 8
    """P, the paths that evolve for a task."""
    tournament_steps: int = 5
    """Batches of a tournament."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(modules=self.modules, active=self.active, tournament_steps=self.tournament_steps)
        if self.population < 2:
            raise InputError(f"population must be at least 2, for a tournament, got {self.population}")
        if not (self.hidden or self.channels):
            raise InputError("hidden must have a layer of modules, or channels, got neither")


@register("pathnet", PathNetConfig)
class PathNet(GradientLearner):
    """PathNet: paths through modules evolve by tournaments; the best path of a task is frozen."""

    config: PathNetConfig
    network: nn.ModuleDict

    def __init__(self, problem: Problem, config: PathNetConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.current = 0
        """The task that is learned."""
        self.paths: dict[int, Tensor] = {}
        """The frozen path of each task that is over ``[L, N]``."""
        self.labels = torch.zeros(len(self.heads), problem.outputs, dtype=torch.bool)
        """Output units that each task has learned."""
        with self.random.active():
            self.begin()

    # -- the network -----------------------------------------------------------------------------------------------------------

    def build(self) -> nn.Module:
        """Layers of modules, and a head for each task."""
        count = len(self.problem.task_outputs or self.problem.task_examples or (None,))
        width = trunk(self.network_input_shape, hidden=self.config.hidden, channels=self.config.channels)[2]
        heads = [nn.Linear(width, self.problem.outputs) for _ in range(count)]
        return nn.ModuleDict({"layers": self.new_modules(), "heads": nn.ModuleList(heads)})

    def new_modules(self) -> nn.ModuleList:
        """M modules for each layer, that have learned nothing."""
        config = self.config
        columns = []
        for _ in range(config.modules):
            layers, _, _ = trunk(self.network_input_shape, hidden=config.hidden, channels=config.channels, dropout=config.dropout)
            if config.channels:
                for layer in layers.values():
                    initialise(layer)
            columns.append(stages(layers))
        return nn.ModuleList(nn.ModuleList(layer) for layer in zip(*columns, strict=True))

    @property
    def layers(self) -> list[nn.ModuleList]:
        """The modules of each layer."""
        found = self.network["layers"]
        assert isinstance(found, nn.ModuleList)
        return [modules for modules in found if isinstance(modules, nn.ModuleList)]

    @property
    def heads(self) -> nn.ModuleList:
        """One for each task."""
        found = self.network["heads"]
        assert isinstance(found, nn.ModuleList)
        return found

    def answers(self, path: Tensor, number: int, x: Tensor) -> Tensor:
        """Outputs of a path ``[L, N]`` and the head of a task; minus infinity for labels that the task has never had."""
        for modules, chosen in zip(self.layers, path.tolist(), strict=True):
            x = torch.stack([modules[m](x) for m in sorted(set(chosen))]).sum(0)
        outputs: Tensor = self.heads[number](x)
        known = self.labels[number].to(self.device)
        return outputs.masked_fill(~known, -torch.inf) if bool(known.any()) else outputs

    # -- evolution -------------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new population, and its first tournament."""
        config = self.config
        self.population = torch.randint(config.modules, (config.population, len(self.layers), config.active))
        """Genotypes ``[P, L, N]``."""
        self.winner: int | None = None
        """Of the last tournament."""
        self.next_tournament()

    def next_tournament(self) -> None:
        """Two genotypes, drawn at random."""
        self.contestants = torch.randperm(self.config.population)[:2]
        self.right = torch.zeros(2)
        """Examples that each has classified."""
        self.step = 0
        """Batches of the tournament."""

    def decide(self) -> None:
        """The winner's copy, with mutations, takes the loser's place."""
        first, second = self.contestants.tolist()
        self.winner, loser = (first, second) if self.right[0] >= self.right[1] else (second, first)
        self.population[loser] = mutated(self.population[self.winner], self.config.modules)
        self.next_tournament()

    @property
    def best(self) -> Tensor:
        """The path of the winner; before there is one, of the contestant who leads."""
        return self.population[self.contestants[self.right.argmax()] if self.winner is None else self.winner]

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """A step of both contestants; a task that comes again only learns its head."""
        if task is not None:
            number = int(task.mode()[0])
            if number != self.current:
                self.end_task()
                self.current = number
            x, y, task = x[task == number], y[task == number], task[task == number]
        self.labels[self.current, y] = True
        terms = super().learn(x, y, task)
        if self.current not in self.paths:
            self.step += 1
            if self.step == self.config.tournament_steps:
                with self.random.active():
                    self.decide()
        return terms

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """The sum of both contestants' cross-entropies; what they get right counts."""
        evolving = self.current not in self.paths
        paths = self.population[self.contestants] if evolving else self.paths[self.current].unsqueeze(0)
        answers = [self.answers(path, self.current, x) for path in paths]
        right = torch.stack([(outputs.argmax(1) == y).float().sum() for outputs in answers]).cpu()
        if evolving:
            self.right = self.right + right
        loss = torch.stack([F.cross_entropy(outputs, y) for outputs in answers]).sum()
        return {"loss": loss, "accuracy": float(right.max()) / len(y)}

    def end_task(self) -> None:
        """The best path is frozen, everything that no task has frozen begins anew, and so does evolution."""
        if not bool(self.labels[self.current].any()):
            return
        if self.current not in self.paths:
            self.paths[self.current] = self.best.clone()
            self.freeze()
            with self.random.active():
                for modules, fresh in zip(self.layers, self.new_modules(), strict=True):
                    assert isinstance(fresh, nn.ModuleList)
                    for module, new in zip(modules, fresh, strict=True):
                        if all(parameter.requires_grad for parameter in module.parameters()):
                            module.load_state_dict(new.state_dict())
                self.begin()
            self.optimizer = self.make_optimizer()
        if self.problem.task_outputs is None:
            self.current = min(self.current + 1, len(self.heads) - 1)

    def freeze(self) -> None:
        """Modules on the path of a task that is over do not learn, all others do."""
        frozen = {(layer, m) for path in self.paths.values() for layer, chosen in enumerate(path.tolist()) for m in chosen}
        for layer, modules in enumerate(self.layers):
            for m, module in enumerate(modules):
                module.requires_grad_((layer, m) not in frozen)

    # -- prediction ------------------------------------------------------------------------------------------------------------

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """Of the path of each example's task; outside Task-IL of the path that is surest of it."""
        if task is None:
            return self.surest(x)
        p = x.new_empty(len(x), self.problem.outputs)
        for number in task.unique().tolist():
            mine = (task == number).to(self.device)
            p[mine] = self.masked(self.answers(self.path_of(number), number, x[mine]), task[task == number]).softmax(1)
        return p

    def surest(self, x: Tensor) -> Tensor:
        """Every path is asked, and the one with the lowest entropy answers."""
        trained = self.labels.any(1).nonzero().flatten().tolist() or [self.current]
        p = torch.stack([self.answers(self.path_of(number), number, x).softmax(1) for number in trained], 1)
        chosen = torch.special.entr(p).sum(2).argmin(1)
        return p[torch.arange(len(x), device=p.device), chosen]

    def path_of(self, number: int) -> Tensor:
        """The path of a task: frozen, or the best so far."""
        return self.paths.get(number, self.best)

    # -- state -----------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Network, optimiser, random state, frozen paths, and where evolution is."""
        return super().state_dict() | {
            "current": self.current,
            "paths": {str(number): path for number, path in self.paths.items()},
            "labels": self.labels,
            "population": self.population,
            "winner": self.winner,
            "contestants": self.contestants,
            "right": self.right,
            "step": self.step,
        }

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        super().restore(state)
        like = self.population[0]
        self.paths = {int(number): tensor_like(path, like, "a path") for number, path in state["paths"].items()}
        for name in ("labels", "population", "contestants", "right"):
            setattr(self, name, tensor_like(state[name], getattr(self, name), name))
        self.current, self.step = int(state["current"]), int(state["step"])
        self.winner = None if state["winner"] is None else int(state["winner"])
        ranges = {"modules": self.config.modules, "tasks": len(self.heads), "contestants": self.config.population}
        numbers = {
            "modules": torch.cat([self.population.flatten(), *(path.flatten() for path in self.paths.values())]),
            "tasks": torch.tensor([self.current, *self.paths]),
            "contestants": torch.tensor([*self.contestants.tolist(), self.winner or 0]),
        }
        for name, limit in ranges.items():
            if not bool(((numbers[name] >= 0) & (numbers[name] < limit)).all()):
                raise ValueError(f"its {name} are not all between 0 and {limit - 1}")
        self.freeze()


def mutated(genotype: Tensor, modules: int) -> Tensor:
    """A copy of a genotype ``[L, N]`` in which each number moves with probability 1 / (L N)."""
    moves = torch.randint(-STRIDE, STRIDE + 1, genotype.shape)
    chosen = torch.rand(genotype.shape) < 1 / genotype.numel()
    return (genotype + moves * chosen) % modules
