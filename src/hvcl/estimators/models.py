"""What learns from encoded rows: a learner of any method for classes, conjugate regression for numbers."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hvcl.core.configuration import configure, to_json
from hvcl.core.errors import InputError, RunError, UnknownNameError
from hvcl.core.problem import Problem
from hvcl.core.random import float32
from hvcl.core.state import State
from hvcl.estimators.groups import GroupSums
from hvcl.estimators.maps import PICTURE_FEATURES, default_features, make_map, picture_choice, picture_map
from hvcl.estimators.scales import Scales
from hvcl.features import FeatureChoice, FeatureMap
from hvcl.learners import Exact, ExactConfig, Learner, create, merge, method
from hvcl.learners.conjugate import SharedExperts
from hvcl.ops.rows import Scores
from hvcl.posteriors import MatrixNormal
from hvcl.posteriors.classes import FREEDOM, ArrayReading

FAR_TARGET = 100.0
"""Spreads from the first rows' median at which targets are clipped."""

MOST_EXPERTS = 32
"""Of a gate, unless the settings say otherwise: a stream has no end."""

BLOCK = 32
"""Rows that are predicted at once; fewer are filled up, so that a row's answer does not depend on the rows beside it."""


@dataclass(frozen=True)
class ClassReading:
    """Probabilities of units, as they were at some time."""

    head: ArrayReading
    """Of the classes in the order they were learned."""
    units: list[int]
    """Their units."""
    outputs: int
    """Number of units."""

    def __call__(self, own: NDArray[Any]) -> NDArray[np.float64]:
        """Probabilities ``[n, units]`` from features."""
        p = np.zeros((len(own), self.outputs))
        p[:, self.units] = self.head(own)
        return p

    def scores(self) -> Scores:
        """The same for compiled code."""
        head = self.head
        return Scores(head.weights, head.at_zero, head.means, head.prior, tuple(self.units), head.power, FREEDOM)

    def state_dict(self) -> State:
        """As plain values and tensors."""
        return {"head": _tensors(self.head), "units": list(self.units), "outputs": self.outputs}

    @classmethod
    def from_state(cls, state: State) -> ClassReading:
        """From what `state_dict` returned."""
        return cls(ArrayReading(**_arrays(state["head"])), [int(unit) for unit in state["units"]], int(state["outputs"]))


@dataclass(frozen=True)
class LinearReading:
    """Standardised numbers, as they were at some time."""

    weights: NDArray[np.float64]
    """From features to targets ``[F, C]``."""
    near: NDArray[np.float64]
    """Mean of the features ``[F]``."""
    offset: NDArray[np.float64]
    """Targets of the mean ``[C]``."""

    def __call__(self, own: NDArray[Any]) -> NDArray[np.float64]:
        """Means ``[n, C]`` from features."""
        return np.asarray(own.astype(np.float64) @ self.weights + self.at_zero)

    @cached_property
    def at_zero(self) -> NDArray[np.float64]:
        """Means ``[C]`` for features that are zero."""
        return np.asarray(self.offset - self.near @ self.weights)

    def scores(self) -> Scores:
        """The same for compiled code."""
        return Scores(self.weights, self.at_zero)

    def state_dict(self) -> State:
        """As tensors."""
        return _tensors(self)

    @classmethod
    def from_state(cls, state: State) -> LinearReading:
        """From what `state_dict` returned."""
        return cls(**_arrays(state))


def _tensors(arrays: Any) -> State:
    return {each.name: torch.from_numpy(getattr(arrays, each.name).copy()) for each in fields(arrays)}


def _arrays(state: State) -> dict[str, NDArray[np.float64]]:
    arrays = {name: value.double().numpy().copy() for name, value in state.items()}
    if not all(np.isfinite(value).all() for name, value in arrays.items() if name != "prior"):
        raise RunError("the saved reading of the model is damaged: it holds NaN or infinity")
    return arrays


class Model(ABC):
    """Learns from encoded rows with targets, and answers."""

    def far_targets(self, targets: Tensor) -> int:
        """How many rows have targets that are so far out that they are not learned as they are."""
        return 0

    @abstractmethod
    def learn(self, x: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Learn from rows, which count as often as weights ``[n]``, float64, say; None: once each."""

    @abstractmethod
    def learn_features(self, own: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """`learn` rows by their `features`."""

    @property
    @abstractmethod
    def sums(self) -> bool:
        """Whether all that is learned are sums over `features` of the rows."""

    @property
    @abstractmethod
    def count(self) -> float:
        """Rows in the sums."""

    @abstractmethod
    def reading(self) -> ClassReading | LinearReading | None:
        """Answers from `features` of rows, as of now: what is learned later does not change them. None: no row yet."""

    @abstractmethod
    def snapshot(self) -> Self | None:
        """A model that answers as this one does now, and never changes; None: that would take a copy of all that is learned."""

    @abstractmethod
    def prepare(self) -> None:
        """Compute what all answers of a snapshot are made of."""

    @abstractmethod
    def remove(self, x: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Unlearn rows; `InputError`, and nothing has changed, if they cannot all have been learned."""

    @property
    @abstractmethod
    def counts(self) -> Tensor:
        """Rows of every unit, or of all, of a model that can unlearn; zero where nothing is left but rounding."""

    @abstractmethod
    def subtract(self, part: GroupSums) -> None:
        """Unlearn a group by its sums; `InputError`, and nothing has changed, if it cannot all have been learned."""

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """phi(x) of a model whose sums can be taken out again; `InputError` from others."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Number of features of a model whose sums can be taken out again; `InputError` from others."""

    @abstractmethod
    def indicators(self, targets: Tensor) -> Tensor:
        """Targets as the columns of the regression ``[n, C]``."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """C."""

    @abstractmethod
    def state_dict(self) -> State:
        """All of it, with what is needed to build it."""


def in_blocks(x: Tensor) -> list[Tensor]:
    """Blocks of `BLOCK` rows; the last one is filled up with its first row."""
    blocks = list(x.split(BLOCK))
    short = BLOCK - len(blocks[-1])
    if short:
        blocks[-1] = torch.cat([blocks[-1], blocks[-1][:1].expand(short, *x.shape[1:])])
    return blocks


class ClassModel(Model):
    """A learner of a registered method on encoded rows; labels are units from 0.

    Args:
        scales: of the rows.
        outputs: number of units to begin with.
        name: of the method.
        settings: of the method.
        features: number of random features of `exact`; None: by the number of columns.
        seed: of everything random.
    """

    def __init__(
        self, scales: Scales, outputs: int, name: str, settings: dict[str, Any], features: int | None, seed: int
    ) -> None:
        self.name = name
        problem = Problem(scales.input_shape, outputs)
        if method(name).learner is Exact:
            self.learner: Learner = _exact(problem, scales, settings, features, seed)
        else:
            if features is not None:
                raise InputError(f"method {name!r} has no random features: leave `features` out, and use `method_settings`")
            if any(setting.name == "likelihood" for setting in fields(method(name).config)):
                settings = {"likelihood": "gaussian", **settings}  # of standardised numbers, which have no bounds
            self.learner = create(name, problem, seed, **settings)

    @property
    def outputs(self) -> int:
        """Number of units."""
        return self.learner.problem.outputs

    @property
    def grows(self) -> bool:
        """Whether units can be added in mid-stream."""
        return isinstance(self.learner, Exact)

    @property
    def ordered(self) -> bool:
        """Whether the order of rows matters."""
        return not isinstance(self.learner, Exact) or self.learner.config.gate

    def grow(self, outputs: int) -> None:
        """Room for so many units."""
        if outputs > self.outputs:
            if not self.grows:
                raise InputError(
                    f"method {self.name!r} has {self.outputs} outputs, which cannot grow, and there are {outputs} labels now: "
                    "give all labels as `classes` in the first call, or use method 'exact'"
                )
            self.learner.problem = replace(self.learner.problem, outputs=outputs)

    def learn(self, x: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """One batch."""
        if weights is None:
            self.learner.observe(x, targets)
        else:
            assert isinstance(self.learner, Exact)
            self.learner.observe_weighted(x, targets, weights)

    def learn_features(self, own: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """One batch."""
        learner, _ = self._shared()
        learner.observe_features(own, targets, weights)

    @property
    def sums(self) -> bool:
        """Of `exact` without a gate."""
        return isinstance(self.learner, Exact) and not self.learner.config.gate

    @property
    def count(self) -> float:
        """Of the head."""
        return self._shared()[1].head.model.count

    def reading(self) -> ClassReading | None:
        """Of the head, whose columns are the units in the order they were learned."""
        _, experts = self._shared()
        if not experts.head.model.count:
            return None
        return ClassReading(experts.head.reading().arrays(), [unit for _, unit in experts.columns], self.outputs)

    def snapshot(self) -> Self | None:
        """Of `exact` with shared features."""
        learner = self.learner.snapshot() if isinstance(self.learner, Exact) else None
        if learner is None:
            return None
        made = copy.copy(self)
        made.learner = learner
        return made

    def prepare(self) -> None:
        """The reading of the head."""
        if isinstance(self.learner, Exact) and isinstance(self.learner.experts, SharedExperts) and self.learner.expert_log.seen:
            self.learner.experts.head.reading()

    def first_rows_are_over(self) -> None:
        """Let a learner with features of its own fit them to what it has."""
        if isinstance(self.learner, Exact):
            with float32():
                self.learner.end_warmup()

    def remove(self, x: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Exact unlearning, where the method can."""
        learner = self.learner
        if not isinstance(learner, Exact):
            raise InputError(f"method {self.name!r} cannot forget rows: its weights are no sums. Use method 'exact'")
        if learner.config.gate or not isinstance(learner.experts, SharedExperts):
            logged = [record.labels for record in learner.expert_log.records]
            for unit, rows in enumerate(torch.bincount(targets).tolist()):
                if rows > sum(labels.get(unit, 0) for labels in logged):
                    raise InputError("cannot forget these rows: of some class there are more than were learned")
            learner.remove(x, targets, None, weights)
            return
        x, y, _ = learner.accept(x, targets, None)
        learner.experts.remove(x, y, torch.zeros_like(y), weights)
        self._log_removal(learner, torch.bincount(y))

    def _log_removal(self, learner: Exact, rows: Tensor) -> None:
        """Of so many rows of each unit. The sums know their weights, the log only rows: of a unit that has any, at least one."""
        counts, gone = self.counts.tolist(), rows.tolist()
        for record in learner.expert_log.records:
            for unit, logged in list(record.labels.items()):
                left = max(logged - (gone[unit] if unit < len(gone) else 0), 1) if counts[unit] else 0
                learner.expert_log.correct(record.expert, unit, left)

    @property
    def counts(self) -> Tensor:
        """Of every unit."""
        counts = torch.zeros(self.outputs, dtype=torch.float64)
        if isinstance(self.learner, Exact):
            experts = self.learner.experts
            if isinstance(experts, SharedExperts):
                units = torch.tensor([unit for _, unit in experts.columns], dtype=torch.long)
                return counts.index_add(0, units, experts.head.counts)
            for head in experts.heads if experts is not None else []:
                counts[: head.classes] += head.counts
        return counts

    def _shared(self) -> tuple[Exact, SharedExperts]:
        if isinstance(self.learner, Exact) and isinstance(self.learner.experts, SharedExperts) and not self.learner.config.gate:
            return self.learner, self.learner.experts
        raise InputError("groups are sums of rows, which only method 'exact' without a gate has (method_settings gate=False)")

    @property
    def map(self) -> FeatureMap:
        """The shared map."""
        return self._shared()[1].features

    def features(self, x: Tensor) -> Tensor:
        """phi(x)."""
        return self.map(x)

    @property
    def width(self) -> int:
        """Of the shared map."""
        return self._shared()[1].features.features

    def indicators(self, targets: Tensor) -> Tensor:
        """Indicators of the units."""
        indicators = np.zeros((len(targets), self.outputs))
        indicators[np.arange(len(targets)), targets.numpy()] = 1
        return torch.from_numpy(indicators)

    def subtract(self, part: GroupSums) -> None:
        """From the head, whose columns are the units in the order they were learned."""
        learner, experts = self._shared()
        experts.head.subtract(part.model([unit for _, unit in experts.columns]))
        self._log_removal(learner, part.targets.round().long())

    def probabilities(self, x: Tensor) -> Tensor:
        """p(unit | row) ``[n, units]``, float64."""
        return torch.cat([self.learner.predict(block) for block in in_blocks(x)])[: len(x)].double()

    def merged(self, other: ClassModel, units: list[int], outputs: int) -> ClassModel:
        """A model that has learned what both have; `units` are those of the other one's here."""
        a, b = self.learner, other.learner
        if not isinstance(a, Exact) or not isinstance(b, Exact):
            raise InputError(f"method {self.name!r} cannot be merged: its weights are no sums. Use method 'exact'")
        result = ClassModel.from_state(self.state_dict(), self.name)
        moved = ClassModel.from_state(_renamed(other.state_dict(), units), other.name)
        for model in (result, moved):
            model.learner.problem = replace(model.learner.problem, outputs=outputs)
        assert isinstance(result.learner, Exact)
        assert isinstance(moved.learner, Exact)
        result.learner = merge(result.learner, moved.learner)
        return result

    def state_dict(self) -> State:
        """Problem, settings and state of the learner."""
        learner = self.learner
        learner.check_savable()
        return {"problem": asdict(learner.problem), "settings": to_json(learner.config), "learner": learner.state_dict()}

    @classmethod
    def from_state(cls, state: State, name: str) -> ClassModel:
        """A model that goes on bit-identically; `RunError` if the state does not fit."""
        model = cls.__new__(cls)
        model.name = name
        try:
            chosen = method(name)
            problem = Problem(tuple(state["problem"]["input_shape"]), int(state["problem"]["outputs"]))
            config = configure(chosen.config, dict(state["settings"]))
        except UnknownNameError as error:
            raise RunError(f"the estimator cannot be built ({error}): install what the method came with") from None
        except (InputError, KeyError, TypeError, ValueError) as error:
            raise RunError(f"the saved estimator does not fit this version of hvcl ({error})") from None
        with float32():
            model.learner = chosen.learner(problem, config, 0)
        model.learner.load_state_dict(state["learner"])
        return model


def exact_settings(scales: Scales, settings: dict[str, Any], features: int | None) -> ExactConfig:
    """The configuration of `exact`: without a gate, and with features that suit the rows, unless the settings say otherwise.

    The experts of a gate are bounded, and those that have become one are joined, so that every batch costs the same.
    """
    given: dict[str, Any] = {"gate": bool(settings.get("separate")), **settings}
    if given["gate"] and not given.get("separate"):
        given = {"max_experts": MOST_EXPERTS, "merging": True, **given}
    if features is not None:
        given["random_features"] = int(features)
    if scales.shape is not None:
        count = given.setdefault("random_features", PICTURE_FEATURES)
        given.setdefault("filters", max(count // (2 * given.get("grid", 2) ** 2), 2))
    elif given.get("separate"):
        given.setdefault("random_features", default_features(len(scales.kinds)))
    config: ExactConfig = configure(ExactConfig, given | {"warmup": 2})
    return config


def picture_maps(scales: Scales, config: ExactConfig, seed: int) -> FeatureChoice:
    """The maps that `exact` may have for pictures."""
    assert scales.shape is not None
    return picture_choice(
        scales.shape,
        config.random_features,
        seed,
        kind=config.features,
        filters=config.filters,
        sizes=config.sizes,
        grid=config.grid,
        mirror=config.mirror,
        field=config.field,
    )


def _exact(problem: Problem, scales: Scales, settings: dict[str, Any], features: int | None, seed: int) -> Exact:
    """`exact` on the map that scales and seed determine."""
    config = exact_settings(scales, settings, features)
    if config.separate:
        return Exact(problem, config, seed)
    if scales.shape is not None:
        return Exact(problem, config, seed, picture_map(scales, picture_maps(scales, config, seed)))
    made = make_map(scales, settings.get("random_features") if features is None else features, seed)
    return Exact(problem, replace(config, features="random", random_features=made.features), seed, made)


def _renamed(state: State, units: list[int]) -> State:
    """The state of an `exact` model whose units have other numbers."""
    learner = dict(state["learner"])
    if learner["experts"] is not None:
        if learner["experts"].get("gate") is not None and units != list(range(len(units))):
            raise InputError("learners with a gate can be merged only if both were given the same `classes` in their first call")
        columns = [[expert, units[unit]] for expert, unit in learner["experts"]["columns"]]
        learner["experts"] = learner["experts"] | {"columns": columns}
    records = [
        record | {"labels": {str(units[int(unit)]): count for unit, count in record["labels"].items()}}
        for record in learner["log"]["records"]
    ]
    learner["log"] = learner["log"] | {"records": records}
    outputs = max(max(units, default=0) + 1, state["problem"]["outputs"])
    return state | {"problem": state["problem"] | {"outputs": outputs}, "learner": learner}


class RegressionModel(Model):
    r"""Bayesian linear regression on the features (`MatrixNormal`), of targets standardised by the first rows' median and spread.

    Args:
        feature_map: fitted.
        centre: of the targets ``[C]``.
        spread: of the targets ``[C]``.
        ridge: of the regression; None: from the evidence.
    """

    def __init__(self, feature_map: FeatureMap, centre: Tensor, spread: Tensor, ridge: float | None) -> None:
        self.map, self.centre, self.spread = feature_map, centre, spread
        # the features are standardised: sums around zero, so that no row's features stay in the state as a centre
        self.regression = MatrixNormal(feature_map.features, len(centre), ridge=ridge, centre=torch.zeros(feature_map.features))

    @property
    def outputs(self) -> int:
        """Number of targets of a row."""
        return len(self.centre)

    def features(self, x: Tensor) -> Tensor:
        """phi(x)."""
        return self.map(x)

    @property
    def width(self) -> int:
        """Of the map."""
        return self.map.features

    def indicators(self, targets: Tensor) -> Tensor:
        """Standardised targets; what lies farther out than `FAR_TARGET` spreads counts as that, lest one row rule all others."""
        return ((targets - self.centre) / self.spread).clamp(-FAR_TARGET, FAR_TARGET)

    def far_targets(self, targets: Tensor) -> int:
        """Those that `indicators` clips."""
        return int(((targets - self.centre).abs() > FAR_TARGET * self.spread).any(1).sum())

    def learn(self, x: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add rows to the sums."""
        self.regression.add(self.features(x), self.indicators(targets), weights)

    def learn_features(self, own: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Add rows to the sums."""
        self.regression.add(own, self.indicators(targets), weights)

    @property
    def sums(self) -> bool:
        """Always."""
        return True

    @property
    def count(self) -> float:
        """Of the regression."""
        return self.regression.count

    def reading(self) -> LinearReading | None:
        """Standardised means."""
        if not self.regression.count:
            return None
        posterior = self.regression.posterior()
        return LinearReading(posterior.weights.numpy(), posterior.feature_mean.numpy(), posterior.intercept.numpy())

    def snapshot(self) -> Self:
        """With a snapshot of the regression."""
        made = copy.copy(self)
        made.regression = self.regression.snapshot()
        return made

    def prepare(self) -> None:
        """The posterior."""
        if self.regression.count:
            self.regression.posterior()

    def remove(self, x: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Take rows out of the sums."""
        self.regression.remove(self.features(x), self.indicators(targets), weights)

    @property
    def counts(self) -> Tensor:
        """Of all rows ``[1]``."""
        return torch.tensor([self.regression.count], dtype=torch.float64)

    def subtract(self, part: GroupSums) -> None:
        """From the regression."""
        self.regression.subtract(part.model())

    def merge(self, other: RegressionModel) -> None:
        """Add what another model with the same map has learned."""
        if not self.map.same_as(other.map):
            raise InputError("the two estimators have different feature maps: give the second the scales_ and seed of the first")
        if not torch.equal(self.centre, other.centre) or not torch.equal(self.spread, other.spread):
            raise InputError("the two estimators have different scales of targets: give the second the scales_ of the first")
        self.regression.merge(other.regression)

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of the targets of new rows ``[n, C]``, float64; before the first row the centre, and no variance."""
        if not self.regression.count:
            nothing = torch.zeros(len(x), self.outputs, dtype=torch.float64)
            return nothing + self.centre, nothing
        posterior = self.regression.posterior()
        phi = [self.features(block).double() for block in in_blocks(x)]
        mean = torch.cat([posterior.mean(block) for block in phi])[: len(x)]
        variance = torch.cat([posterior.variance(block) for block in phi])[: len(x)]
        return mean * self.spread + self.centre, variance * self.spread.square()

    def state_dict(self) -> State:
        """Map, scales of the targets and sums."""
        return {
            "map": self.map.state_dict(),
            "centre": self.centre,
            "spread": self.spread,
            "ridge": self.regression.ridge,
            "regression": self.regression.state_dict(),
        }

    @classmethod
    def from_state(cls, state: State, feature_map: FeatureMap) -> RegressionModel:
        """A model that goes on bit-identically; `feature_map` is not fitted. `RunError` if the state does not fit."""
        feature_map.load_state_dict(state["map"])
        model = cls(feature_map, state["centre"], state["spread"], state["ridge"])
        model.regression.load_state_dict(state["regression"])
        return model
