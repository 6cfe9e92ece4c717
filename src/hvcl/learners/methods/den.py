r"""Dynamically expandable networks: DEN (Yoon, Yang, Lee & Hwang, 2018).

The first task is learned by a sparse network, mu |W|_1 in the loss. Every later task t goes through three parts, with W' the
weights at the last boundary and L the mean cross-entropy on the task.

1. Selective retraining. Only what the head of the task needs is learned,

       L(W_head) + mu |W_head|_1 ,

   and the units S that a way of non-zero weights leads to from the head; then the weights between these,

       L(W_S) + ridge / 2 |W_S|^2 + strength / 2 |W_S - W'_S|^2 .

2. Expansion. If the loss is still above a threshold, every hidden layer gets k units more, and only weights into them and out of
   them are learned, with group sparsity: a group g is what goes into one unit, n of them,

       L(W_new) + mu |W_new|_1 + gamma sum_g sqrt(n) |g| .

   New units that nothing goes into any more are useless and removed.

3. Split and duplication. Units that have drifted, |w_i - w'_i| > drift for what goes into unit i, are what they were again,
   and a copy of each is what it had become. Then all weights are learned once more,

       L(W) + strength / 2 |W - W'|^2 .

Units are stamped with the task that added or split them: in Task-IL an example of task s is answered by the units that there were
when s was learned last, and by its own head. Elsewhere nobody tells which task an example is of: the network answers as a whole,
with one head. That is not in the paper, whose results are all with task ids.

|.|_1 and |g| act by their proximal step after each step of Adam, so that there are zeros: |w| falls by learning_rate * mu, |g| by
learning_rate * gamma * sqrt(n). A task's batches are divided among the parts, of which each begins with a new Adam: a tenth for
the head alone, up to half of them the selected weights, up to three quarters the new ones (or again the selected ones, if none
are needed), the rest after the split. The loss that is compared with the threshold is a running mean over batches. The authors
train each part until the loss no longer falls, and have more steps for it.

The paper leaves open, and here it is so: the head of a new task starts at zero, and so do the weights out of new units; a copy
takes over what its unit gave to the task's head, to other copies and to new units, while older units go on hearing the original.
At most k units of a layer are split at a boundary, those that drifted most; the authors' code has this limit, too, but takes
those that drifted least. From the code is the pull to W' in part 1, and not from it that parts learn only what the paper says
(the code learns old weights along with new ones), and that part 3 does not wait for part 2.

Deviates from the paper: sqrt(n) in the groups; leaky ReLUs. A convolution's units are its channels.

A task-free stream announces no boundaries: there the sparse network is all there is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.core.state import tensor_like, tensors_like
from hvcl.learners.base import State
from hvcl.learners.gradient import GradientConfig, GradientLearner, Terms
from hvcl.learners.registry import register
from hvcl.networks import build_network, initialise

Part = Literal["first", "head", "selected", "new", "all"]
"""What is being learned: the first task, or a part of a later one."""

HEAD_UNTIL, SELECTED_UNTIL, NEW_UNTIL = 0.1, 0.5, 0.75
"""Where in a task the parts end, as fractions of its batches."""

Layer = nn.Linear | nn.Conv2d

RECENT = 0.1
"""Weight of the last batch in the running mean of the loss."""

TINY = 1e-30
"""Least length of a group, so that one that is zero stays so."""


@dataclass(frozen=True)
class DENConfig(GradientConfig):
    """Dynamically expandable networks."""

    learning_rate: float = 1e-3
    """Step size of Adam."""
    sparsity: float = 0.2
    """mu, weight of |W|_1."""
    group_sparsity: float = 0.1
    """gamma, weight of the norms of what goes into a new unit."""
    ridge: float = 1e-4
    """Weight of the squares of selected weights."""
    strength: float = 0.5
    """Weight of the pull towards the weights of the last boundary."""
    loss_threshold: float = 0.05
    """Mean cross-entropy after selective retraining above which the network grows."""
    drift_threshold: float = 0.2
    """How far what goes into a unit may move before the unit is split."""
    added: int = 10
    """k, the units that a layer gets for a task, and the most of it that are split."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("sparsity", "group_sparsity", "ridge", "strength", "loss_threshold", "drift_threshold", "added"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)}")


@register("den", DENConfig)
class DEN(GradientLearner):
    """Dynamically expandable networks: retrain what a task needs, add units it lacks, split those that drift, stamp them all."""

    config: DENConfig
    network: nn.Sequential

    def __init__(self, problem: Problem, config: DENConfig, seed: int) -> None:
        super().__init__(problem, config, seed)
        self.stage = 0
        """Tasks that are over."""
        self.step = 0
        """Batches of the present task."""
        self.part: Part = "first"
        self.recent: float | None = None
        """Running mean of the loss since the part began."""
        self.stamps = [torch.zeros(len(layer.weight), dtype=torch.long) for layer in list(self.layers.values())[:-1]]
        """Of each hidden layer's units: the stage that added or split them. Those of the present task come last."""
        self.stages: dict[int, int] = {}
        """Task-IL: the stage in which each task was learned last."""
        self.outputs = self._no_outputs()
        """Output units that the present task learns."""
        self.known = torch.zeros(problem.outputs, dtype=torch.bool)
        """Output units that earlier tasks learned."""
        self.before: dict[str, Tensor] = {}
        """W', by name."""
        self.selected: list[Tensor] = []
        """S, for each hidden layer."""
        self._free: dict[str, Tensor] | None = None

    def _no_outputs(self) -> Tensor:
        """In Task-IL batches say which heads they are for."""
        return torch.full((self.problem.outputs,), self.problem.task_outputs is None)

    @property
    def layers(self) -> dict[str, Layer]:
        """All layers with weights by name, from the inputs to the head."""
        return {name: layer for name, layer in self.network.named_children() if isinstance(layer, Layer)}

    @property
    def units(self) -> list[int]:
        """Hidden units of each layer."""
        return [len(stamps) for stamps in self.stamps]

    @property
    def old_units(self) -> list[int]:
        """Those that there were at the last boundary; they come first."""
        return [int((stamps < self.stage).sum()) if self.stage else len(stamps) for stamps in self.stamps]

    # -- learning --------------------------------------------------------------------------------------------------------------

    def learn(self, x: Tensor, y: Tensor, task: Tensor | None) -> dict[str, float]:
        """One step of the part that is due, and the proximal step of its penalties."""
        if task is not None:
            self._meet(task)
        if self.stage:
            self._proceed()
        terms = super().learn(x, y, task)
        self._shrink()
        self.recent = terms["error"] if self.recent is None else (1 - RECENT) * self.recent + RECENT * terms["error"]
        self.step += 1
        return terms | {"units": float(sum(self.units))}

    def _meet(self, task: Tensor) -> None:
        """Task-IL: the heads of these tasks are learned; a new one starts at zero."""
        for number in task.unique().tolist():
            assert self.problem.task_outputs is not None
            head = torch.zeros_like(self.outputs)
            head[list(self.problem.task_outputs[number])] = True
            if not (self.outputs & head).any():
                self.outputs |= head
                self._free = None
                if self.stage and not (self.known & head).any():
                    with torch.no_grad():
                        self.layers["head"].weight[head] = 0.0
            self.stages[number] = self.stage

    def _proceed(self) -> None:
        """Go on to the next part where it is due."""
        steps = self.problem.steps_of(self.stage)
        assert steps is not None
        if self.part == "head" and self.step >= HEAD_UNTIL * steps:
            self.select()
            self._begin("selected")
        if self.part == "selected" and self.step >= SELECTED_UNTIL * steps and self._lacks_units:
            self.expand()
            self._begin("new")
        if self.part in ("selected", "new") and self.step >= NEW_UNTIL * steps:
            self.remove_useless()
            self.split()
            self._begin("all")

    @property
    def _lacks_units(self) -> bool:
        """Whether the selected weights do not suffice, now that their part is over."""
        return self.config.added > 0 and self.recent is not None and self.recent > self.config.loss_threshold

    def _begin(self, part: Part) -> None:
        """A part with an optimiser of its own."""
        self.part, self.recent, self._free = part, None, None
        self.optimizer = self.make_optimizer()

    def loss(self, x: Tensor, y: Tensor, task: Tensor | None) -> Terms:
        """Cross-entropy, and the smooth penalties of the part."""
        error = self.cross_entropy(x, y, task)
        terms: Terms = {"error": error, "loss": error}
        if self.part in ("selected", "all"):
            terms["penalty"] = self.penalty()
            terms["loss"] = error + terms["penalty"]
        return terms

    def penalty(self) -> Tensor:
        """Ridge on the selected weights, and the pull of what is learned to what it was."""
        ridge = self.config.ridge if self.part == "selected" else 0.0
        total = torch.zeros((), device=self.device)
        for name, weight in self.network.named_parameters():
            free, old = self.free[name], self.before[name]
            if ridge and name.endswith("weight"):
                total = total + ridge / 2 * (weight * free).square().sum()
            there = tuple(slice(size) for size in old.shape)
            held = free[there]
            if name.startswith("head."):  # of outputs that are new there is nothing to hold on to
                held = held & self.known.to(self.device).view(-1, *[1] * (old.dim() - 1))
            total = total + self.config.strength / 2 * ((weight[there] - old) * held).square().sum()
        return total

    @torch.no_grad()
    def correct_gradient(self, x: Tensor, y: Tensor, task: Tensor | None) -> None:
        """Only what the part learns moves: of what never had a gradient, a new Adam leaves every bit."""
        for name, parameter in self.network.named_parameters():
            assert parameter.grad is not None
            parameter.grad *= self.free[name]

    @torch.no_grad()
    def _shrink(self) -> None:
        """The proximal steps of |W|_1 and, for new units, of |g|."""
        if self.part not in ("first", "head", "new"):
            return
        rate = self.config.learning_rate
        for name, layer in self.layers.items():
            shrunk = F.softshrink(layer.weight, rate * self.config.sparsity)
            layer.weight.copy_(torch.where(self.free[f"{name}.weight"], shrunk, layer.weight))
        if self.part == "new":
            for layer, old in zip(self.layers.values(), self.old_units, strict=False):
                groups = layer.weight[old:].flatten(1)
                length = groups.norm(dim=1, keepdim=True).clamp_min(TINY)
                step = rate * self.config.group_sparsity * groups.shape[1] ** 0.5
                layer.weight[old:] *= (1 - step / length).clamp_min(0).view(-1, *[1] * (layer.weight.dim() - 1))

    @property
    def free(self) -> dict[str, Tensor]:
        """Which numbers the part learns, by name."""
        if self._free is None:
            self._free = dict(self._find_free())
        return self._free

    def _find_free(self) -> Iterator[tuple[str, Tensor]]:
        """A mask of the weights and one of the biases of each layer, from those of its units and of the units below."""
        below: Tensor | None = None
        for i, (name, block) in enumerate(self.blocks().items()):
            is_head = name == "head"
            allowed = self.outputs if is_head else torch.ones(len(block.bias), dtype=torch.bool)
            units = allowed
            if self.part == "head" and not is_head:
                units = ~allowed
            elif self.part == "selected" and not is_head:
                units = self.selected[i]
            elif self.part == "new":
                units = torch.zeros_like(allowed) if is_head else torch.arange(len(allowed)) >= self.old_units[i]
            mask = units.view(-1, 1, 1).expand(block.weight.shape)
            if below is not None and self.part == "selected":
                mask = mask & below.view(1, -1, 1)
            elif below is not None and self.part == "new":
                mask = mask | (allowed.view(-1, 1, 1) & below.view(1, -1, 1))
            if self.part in ("selected", "all") and not is_head:
                mask = mask & (block.weight != 0).cpu()
            yield f"{name}.weight", mask.reshape(self.layers[name].weight.shape).to(self.device)
            yield f"{name}.bias", units.to(self.device)
            below = units

    # -- the three parts -------------------------------------------------------------------------------------------------------

    def blocks(self) -> dict[str, Block]:
        """The weights of each layer, unit by unit."""
        widths = [None, *self.units]
        return {name: Block.of(layer, width) for (name, layer), width in zip(self.layers.items(), widths, strict=True)}

    def rebuild(self, blocks: dict[str, Block]) -> None:
        """Take weights of other sizes."""
        for name, layer in self.layers.items():
            blocks[name].into(layer)

    def select(self) -> None:
        """S: the units that a way of non-zero weights leads to from the outputs of the task."""
        needed, found = self.outputs, []
        for block in list(self.blocks().values())[:0:-1]:
            needed = (block.weight[needed.to(self.device)] != 0).any(2).any(0).cpu()
            found.append(needed)
        self.selected = found[::-1]

    def expand(self) -> None:
        """k units more in each hidden layer, which say nothing yet."""
        count, blocks = self.config.added, self.blocks()
        for i, (name, block) in enumerate(blocks.items()):
            if i:
                block = block.with_inputs(block.weight.new_zeros(len(block.bias), count, block.weight.shape[2]))
            if name != "head":
                block = block.with_units(self._start(self.layers[name], block, count))
                self._stamp(i, count)
            blocks[name] = block
        self.rebuild(blocks)

    def _start(self, layer: Layer, block: Block, count: int) -> Block:
        """As many units as a layer of this kind and these inputs starts with."""
        more: Layer
        with self.random.active():
            if isinstance(layer, nn.Conv2d):
                more = nn.Conv2d(block.weight.shape[1], count, (layer.kernel_size[0], layer.kernel_size[1]))
            else:
                more = nn.Linear(block.weight[0].numel(), count)
            if self.config.channels:
                initialise(more)
        return Block.of(more.to(self.device), block.weight.shape[1])

    def _stamp(self, layer: int, count: int) -> None:
        """So many units more in a hidden layer."""
        self.stamps[layer] = torch.cat([self.stamps[layer], torch.full((count,), self.stage)])

    def remove_useless(self) -> None:
        """New units that nothing goes into are gone."""
        below: Tensor | None = None
        blocks = self.blocks()
        for i, (name, block) in enumerate(blocks.items()):
            weight = block.weight if below is None else block.weight[:, below]
            below = (weight != 0).flatten(1).any(1)
            if name == "head":
                below[:] = True
            else:
                below[: self.old_units[i]] = True
                self.stamps[i] = self.stamps[i][below.cpu()]
            blocks[name] = Block(weight[below], block.bias[below])
        self.rebuild(blocks)

    def split(self) -> None:
        """Units that drifted are what they were, and copies of them what they had become."""
        blocks, old = self.blocks(), self.old_units
        below = torch.zeros(0, dtype=torch.long, device=self.device)
        for i, (name, block) in enumerate(blocks.items()):
            young, drifted = self.outputs & ~self.known, below[:0]
            if name != "head":
                first = Block(self.before[f"{name}.weight"].view(old[i], -1, block.weight.shape[2]), self.before[f"{name}.bias"])
                drifted = self.drifted(block, first)
                young = torch.arange(len(block.bias) + len(drifted)) >= old[i]
                block = block.with_units(Block(block.weight[drifted], block.bias[drifted]))
                block.weight[drifted] = 0.0
                block.weight[drifted, : first.weight.shape[1]] = first.weight[drifted]
                block.bias[drifted] = first.bias[drifted]
                self._stamp(i, len(drifted))
            # what is of this task alone hears the copies instead of the units, all else what it has always heard
            of_copies = block.weight[:, below] * young.to(self.device).view(-1, 1, 1)
            block.weight[:, below] -= of_copies
            blocks[name] = block.with_inputs(of_copies)
            below = drifted
        self.rebuild(blocks)

    def drifted(self, now: Block, before: Block) -> Tensor:
        """Numbers of the old units whose inputs' weights moved too far, at most k: those that moved most."""
        units, inputs = before.weight.shape[:2]
        distance = (now.weight[:units, :inputs] - before.weight).flatten(1).norm(dim=1)
        most = distance.argsort(descending=True, stable=True)[: self.config.added]
        numbers: Tensor = most[distance[most] > self.config.drift_threshold].sort().values
        return numbers

    def end_task(self) -> None:
        """What there is now is what the next task starts from."""
        if self.problem.task_steps is None:
            raise InputError("this method divides a task's batches among its parts: give their number in Problem.task_steps")
        if self.part == "new":
            self.remove_useless()
        self.stage, self.step, self.selected = self.stage + 1, 0, []
        self.known = self.known | self.outputs
        self.outputs = self._no_outputs()
        self.before = {name: weight.detach().clone() for name, weight in self.network.named_parameters()}
        self._begin("head")

    # -- prediction ------------------------------------------------------------------------------------------------------------

    def probabilities(self, x: Tensor, task: Tensor | None) -> Tensor:
        """Softmax of the outputs; in Task-IL of the units that there were when an example's task was learned last."""
        if task is None or not self.stage:
            return super().probabilities(x, task)
        stages = torch.tensor([self.stages.get(number, self.stage) for number in task.tolist()])
        stamps = iter(self.stamps)
        for layer in self.network:
            x = layer(x)
            if isinstance(layer, nn.LeakyReLU):
                there = next(stamps) <= stages.view(-1, 1)
                x = x * there.view(*there.shape, *[1] * (x.dim() - 2)).to(self.device)
        return self.masked(x, task).softmax(1)

    # -- state -----------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Network, optimiser, random state, stamps, and where in the task it is."""
        return super().state_dict() | {
            "stage": self.stage,
            "step": self.step,
            "part": self.part,
            "recent": self.recent,
            "stamps": list(self.stamps),
            "stages": {str(task): stage for task, stage in self.stages.items()},
            "outputs": self.outputs,
            "known": self.known,
            "before": self.before,
            "selected": list(self.selected),
        }

    def restore(self, state: State) -> None:
        """Restore what `state_dict` returned."""
        self.stage, self.step, self.part = int(state["stage"]), int(state["step"]), state["part"]
        if self.part not in get_args(Part):
            raise ValueError(f"part is {self.part!r}, expected one of {', '.join(get_args(Part))}")
        self.recent = None if state["recent"] is None else float(state["recent"])
        self.stages = {int(task): int(stage) for task, stage in state["stages"].items()}
        self.outputs, self.known = (tensor_like(state[name], self.outputs, name) for name in ("outputs", "known"))
        # no more units than there are numbers for in the file
        widths = [len(state["network"][f"{name}.bias"]) for name in list(self.layers)[:-1]]
        like = [torch.zeros(width, dtype=torch.long) for width in widths]
        self.stamps = [tensor_like(saved, own, "stamps") for saved, own in zip(state["stamps"], like, strict=True)]
        first = [int((stamps == 0).sum()) for stamps in self.stamps]
        if first != [*self.config.channels, *self.config.hidden]:
            raise ValueError(f"its first task had {first} hidden units")
        self._resize(widths)
        super().restore(state)
        old = self.old_units
        self.before = {}
        if self.stage:
            then = dict(self.assembled(old).named_parameters())
            self.before = tensors_like(state["before"], then)
        like = [torch.zeros(width, dtype=torch.bool) for width in old] if state["selected"] else []
        self.selected = [tensor_like(saved, own, "selected") for saved, own in zip(state["selected"], like, strict=True)]
        self._free = None

    def _resize(self, units: list[int]) -> None:
        """A network and an optimiser of these sizes, whatever the weights."""
        with self.random.active(keep=False):
            self.network = self.assembled(units).to(self.device)
        self.optimizer = self.make_optimizer()

    def assembled(self, units: list[int]) -> nn.Sequential:
        """The configured network with other numbers of hidden units."""
        count = len(self.config.channels)
        return build_network(
            self.network_input_shape,
            self.network_outputs,
            hidden=tuple(units[count:]),
            channels=tuple(units[:count]),
            dropout=self.config.dropout,
        )


@dataclass(frozen=True)
class Block:
    """The weights of a layer by unit."""

    weight: Tensor
    """``[units, units below, weights between two]``: one, the numbers of a kernel, or places of a channel that was flattened."""
    bias: Tensor

    @staticmethod
    def of(layer: Layer, below: int | None) -> Block:
        """A copy of a layer's, which hears so many units; None: the network's inputs."""
        assert layer.bias is not None
        weight = layer.weight.detach().clone()
        return Block(weight.view(len(weight), below or weight.shape[1], -1), layer.bias.detach().clone())

    def with_units(self, others: Block) -> Block:
        """These units and others after them."""
        return Block(torch.cat([self.weight, others.weight]), torch.cat([self.bias, others.bias]))

    def with_inputs(self, others: Tensor) -> Block:
        """These units, which hear others as well."""
        return Block(torch.cat([self.weight, others], 1), self.bias)

    def into(self, layer: Layer) -> None:
        """Give a layer these weights."""
        units, below = self.weight.shape[:2]
        if isinstance(layer, nn.Conv2d):
            layer.out_channels, layer.in_channels = units, below
            layer.weight = nn.Parameter(self.weight.reshape(units, below, *layer.kernel_size))
        else:
            layer.out_features, layer.in_features = units, self.weight[0].numel()
            layer.weight = nn.Parameter(self.weight.reshape(units, -1))
        layer.bias = nn.Parameter(self.bias)
