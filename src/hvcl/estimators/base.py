"""What the estimators share: scikit-learn's conventions, the first rows, files, merging, forgetting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils import Tags
from sklearn.utils.validation import _check_sample_weight, check_consistent_length
from torch import Tensor

from hvcl.core.errors import InputError, RunError, UnknownNameError
from hvcl.core.random import check_seed
from hvcl.core.saved import read_saved, write_saved
from hvcl.core.state import State, copied
from hvcl.estimators.core import AnyModel, Core, Course
from hvcl.estimators.groups import Key, check_group
from hvcl.estimators.labels import Labels
from hvcl.estimators.maps import with_filters, with_noise_filters
from hvcl.estimators.now import DriftEvent
from hvcl.estimators.scales import Scales, ScaleWarning, check_width, published, warn_user
from hvcl.estimators.snapshots import FirstModel, Learned
from hvcl.estimators.tables import Kind, Table, read_table
from hvcl.estimators.threads import Guarded, one_at_a_time
from hvcl.estimators.waiting import Waiting, by_group, without
from hvcl.features import FeatureChoice

MAX_REPEATED = 10_000_000
"""Up to so many rows whole sample weights of one call are repetitions; methods that cannot count parts of rows refuse more."""

MAX_WEIGHT = 1e15
"""Largest sum of the sample weights of one call: beyond it a row more makes no difference."""

FITTING = 1024
"""Pictures that a feature map is fitted to, at most."""

_LEARNED = ("_core", "_waiting", "_kinds", "_shape", "_labels", "_flat", "n_features_in_", "feature_names_in_", "classes_")
"""Attributes with what was learned."""


class ContinualEstimator(Guarded, BaseEstimator, Generic[AnyModel]):  # type: ignore[misc]
    """Rows in, answers out, with all that goes on in between; see the classes that users make.

    One call learns at a time, from whatever thread (`hvcl.estimators.threads`); who asks meanwhile gets the answers of before, at
    once (`hvcl.estimators.snapshots`).
    """

    _saved_as: ClassVar[str]
    """Kind of the estimator in files."""

    _warns_later: bool = False
    """Whether rows are accepted one by one, and learned and warned of later (`hvcl.estimators.river`)."""

    seed: int
    answer: str
    on_drift: Callable[[DriftEvent], None] | None
    warmup: int
    max_categories: int
    scales: Scales | None
    private: bool
    fingerprints: int

    # -- what a kind of estimator says ------------------------------------------------------------------------------------

    @abstractmethod
    def _make_model(self, scales: Scales, outputs: int, small: bool = False) -> AnyModel:
        """A model for rows of these scales."""

    @abstractmethod
    def _load_model(self, scales: Scales, state: State) -> AnyModel:
        """The model that a file holds."""

    @abstractmethod
    def _outputs(self, targets: Tensor) -> int:
        """Number of outputs for these first targets."""

    @abstractmethod
    def _targets_learned(self) -> tuple[Labels | None, bool | None]:
        """Labels of a classifier; whether a regressor's targets came as ``[n]``."""

    @abstractmethod
    def _apart(self) -> bool:
        """Whether what is learned has snapshots, which answer while more is learned."""

    @abstractmethod
    def _names(self) -> list[Any] | None:
        """Labels of the units that are targets; None: targets are numbers."""

    @abstractmethod
    def _picture_maps(self, scales: Scales) -> FeatureChoice | None:
        """The maps that pictures may have; None if the model makes its own."""

    _classes: ClassVar[bool]
    """Whether targets are units of classes."""

    # -- scikit-learn -----------------------------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Tags:
        """Missing values and sparse rows are welcome."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.input_tags.categorical = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Whether any row was seen."""
        return getattr(self, "_learned", None) is not None

    def _require_fitted(self) -> Learned[AnyModel]:
        learned: Learned[AnyModel] | None = getattr(self, "_learned", None)
        if learned is None:
            raise NotFittedError(f"this {type(self).__name__} instance is not fitted yet: call fit or partial_fit first")
        return learned

    @property
    def scales_(self) -> Scales:
        """The scales of the first rows, with the categories so far: another site's `scales`, for models that can be merged."""
        learned: Learned[AnyModel] | None = getattr(self, "_learned", None)
        if learned is None or learned.scales is None:
            raise AttributeError("there are no scales yet: they are measured when the first `warmup` rows have been seen")
        return learned.scales

    def _reset(self) -> None:
        """As if nothing was learned; checks the settings."""
        check_seed(self.seed)
        if self.answer not in ("now", "ever"):
            raise InputError(f"answer must be 'now' or 'ever', got {self.answer!r}")
        if self.on_drift is not None and not callable(self.on_drift):
            raise InputError(f"on_drift must be a function of a DriftEvent, got {type(self.on_drift).__name__}")
        for name, least in (("warmup", 2), ("max_categories", 1), ("fingerprints", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if not isinstance(self.private, bool | np.bool_):
            raise InputError(f"private must be True or False, got {self.private!r}")
        published(self.scales)
        for name in ("n_features_in_", "feature_names_in_", "classes_"):
            self.__dict__.pop(name, None)
        self._core: Core[AnyModel] | None = None
        self._waiting: list[Waiting] = []
        self._kinds: tuple[Kind, ...] | None = None
        self._shape: tuple[int, ...] | None = None

    @contextmanager
    def _anew(self) -> Iterator[None]:
        """Begin anew; if that is refused, all is as it was."""
        before = {name: self.__dict__[name] for name in _LEARNED if name in self.__dict__}
        try:
            self._reset()
            yield
        except BaseException:
            for name in _LEARNED:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            raise

    @property
    def drift_(self) -> list[DriftEvent]:
        """Changes of the concept so far (`answer` "now"): after how many rows, which expert, which columns moved with it."""
        learned: Learned[AnyModel] | None = getattr(self, "_learned", None)
        return [] if learned is None else list(learned.events)

    @property
    def experts_(self) -> dict[int, int]:
        """Rows that each expert has learned, by its number: one for each concept, or as the method has them; empty before any."""
        learned: Learned[AnyModel] | None = getattr(self, "_learned", None)
        return {} if learned is None else dict(learned.experts)

    @property
    def n_samples_seen_(self) -> int:
        """Rows so far, as `DriftEvent.row` counts them: those that are forgotten by now among them, unless no other is left."""
        learned: Learned[AnyModel] | None = getattr(self, "_learned", None)
        return 0 if learned is None else learned.rows

    # -- asking -----------------------------------------------------------------------------------------------------------

    def _publish(self, anew: bool = False) -> None:
        """What is learned by now answers from here on; `anew`: a model of the first rows is made anew."""
        core, before = self._core, getattr(self, "_learned", None)
        if core is None and not self._waiting:
            self._learned: Learned[AnyModel] | None = None
            return
        columns = type(self).__new__(type(self))
        for name in ("n_features_in_", "feature_names_in_"):
            if name in self.__dict__:
                setattr(columns, name, self.__dict__[name])
        self._learned = Learned(
            None if core is None else core.snapshot(),
            self._waiting,
            FirstModel() if before is None or anew else before.first,
            self._apart(),
            columns,
            self._kinds,
            self._shape,
            *self._targets_learned(),
            None if core is None else core.scales,
            [] if core is None else list(core.events),
            {} if core is None else core.experts,
            sum(len(part.table) for part in self._waiting) if core is None else core.rows,
        )

    @contextmanager
    def _asked(self) -> Iterator[tuple[Learned[AnyModel], Core[AnyModel]]]:
        """What answers now. It is never changed, or it is not as long as it is needed."""
        learned = self._require_fitted()
        if learned.apart:
            yield learned, self._answering(learned)
            return
        with self._lock:
            learned = self._require_fitted()
            yield learned, self._core or self._answering(learned)

    def _answering(self, learned: Learned[AnyModel]) -> Core[AnyModel]:
        course = self._course(fit=False)
        core = learned.core or learned.first.core(learned.waiting, lambda waiting: self._begin(waiting, course, True))
        core.prepare()
        return core

    def _encoded(self, learned: Learned[AnyModel], core: Core[AnyModel], x: Any) -> Tensor:
        """Rows as `core` takes them."""
        return core.scales.encode(read_table(learned.columns, x, learned.kinds, learned.shape))[0]

    def novelty(self, X: Any) -> NDArray[np.float64]:
        """How unlike the learned rows each row is ``[n]``: about 1 for ordinary rows, without bound for others.

        The squared Mahalanobis distance to the nearest class, over the number of dimensions (`hvcl.estimators.novelty`).
        """
        with self._asked() as (learned, core):
            return core.novelty(self._encoded(learned, core, X))

    def _outliers(self, core: Core[AnyModel], x: Tensor, abstain: float) -> NDArray[np.bool_]:
        """Rows that are more unusual than all but a share `abstain` of the learned rows."""
        if isinstance(abstain, bool) or not isinstance(abstain, float | np.floating) or not 0 < abstain < 1:
            raise InputError(f"abstain must lie between 0 and 1: the share of ordinary rows to refuse, got {abstain!r}")
        return core.novelty.share_beyond(core.novelty(x)) <= abstain

    # -- learning ---------------------------------------------------------------------------------------------------------

    def _read(self, x: Any) -> Table:
        return read_table(self, x, self._kinds, self._shape)

    def _counts_parts(self) -> bool:
        """Whether what is learned can count parts of rows."""
        return True

    def _weighed(
        self, table: Table, targets: NDArray[Any], sample_weight: Any
    ) -> tuple[Table, NDArray[Any], NDArray[np.float64] | None]:
        """Rows and targets as sample weights say: repeated where these are whole numbers, else with weights; none of weight 0."""
        if sample_weight is None:
            return table, targets, None
        weights = _check_sample_weight(sample_weight, np.empty((len(table), 1)), dtype=np.float64)
        times, parts = np.rint(weights), self._counts_parts()
        if (weights < 0).any():
            raise InputError(f"sample weights must not be negative, got {weights.min():g}: forget() takes rows out again")
        if not parts and not np.allclose(weights, times, rtol=0, atol=1e-9):
            raise InputError(
                "sample weights must be whole numbers of at least 0 here: a row of weight 3 counts as three rows, and this "
                "method cannot count parts of a row. Multiply the weights by a common factor and round them, or use 'exact'"
            )
        if not parts and not times.any():
            raise InputError("all sample weights are zero: there is no row")
        if (times.sum() > MAX_REPEATED and not parts) or weights.sum() > MAX_WEIGHT:
            most = MAX_WEIGHT if parts else MAX_REPEATED
            raise InputError(f"the sample weights stand for {weights.sum():.3g} rows, at most {most:.0e} are possible")
        if not parts or (times.sum() <= MAX_REPEATED and (weights == times).all()):
            rows = np.repeat(np.arange(len(table)), times.astype(np.int64))
            return table.take(rows), targets[rows], None
        rows = np.flatnonzero(weights)
        return table.take(rows), targets[rows], weights[rows]

    def _learn(
        self,
        table: Table,
        targets: Tensor,
        group: Key | None,
        course: Course,
        finish: bool,
        weights: NDArray[np.float64] | None = None,
    ) -> None:
        """Learn from rows, or keep them until there are enough; `finish`: these are enough."""
        times = None if weights is None else torch.from_numpy(weights)
        check_width(table)
        if self._core is None:
            waiting = [*self._waiting, Waiting(table, targets, group, times)]
            rows = sum(len(part.table) for part in waiting)
            if self.private:
                self._check_private(table, rows)
            if self.scales is None and not finish and rows < self.warmup:
                self._waiting = waiting
            else:
                self._core, self._waiting = self._begin(waiting, course), []
        else:
            self._core.learn(table, targets, group, course, weights=times, names=self._names())
        self._kinds, self._shape = table.kinds, table.shape

    def _announce(self) -> None:
        """Tell what the last call has shown, when everything is learned: a warning or a call back may raise."""
        if self._core is None:
            return
        warned, events = self._core.news()
        try:
            for words in warned:
                warn_user(words, ScaleWarning)
        finally:
            if self.on_drift is not None:
                for event in events:
                    self.on_drift(event)

    @one_at_a_time
    def _learn_weighed(self, table: Table, targets: Tensor) -> None:
        """Learn rows whose targets the filter over concepts knows already, one by one (`hvcl.estimators.single`).

        Who does so asks the model itself: there is no snapshot, and nothing is announced.
        """
        assert self._core is not None
        self._core.learn(table, targets, None, self._course(fit=False), weighed=True, names=self._names())

    def _check_private(self, table: Table, rows: int) -> None:
        """`InputError` if first rows cannot be learned from without keeping them, or names of categories."""
        if self.scales is None and (self._waiting or rows < self.warmup):
            raise InputError(
                f"with private=True no row is kept, and scales need {self.warmup} rows (`warmup`) in the first call, which has "
                f"{rows}: bring more rows, lower `warmup`, or give another estimator's scales_ as `scales`"
            )
        if self.scales is None and "category" in table.kinds:
            raise InputError(
                "with private=True no value of a row is kept, and scales hold the names of categories: give `scales` that have "
                "them (of made-up rows), or turn these columns into numbers"
            )

    def _begin(self, waiting: list[Waiting], course: Course, small: bool = False) -> Core[AnyModel]:
        """Scales from the first rows, and a model that has learned them; `small`: for the time being, with fewer features."""
        first = Waiting.joined(waiting)
        table, targets = first.table, first.targets
        scales = published(self.scales)
        if scales is None:
            names = getattr(self, "feature_names_in_", None)
            wanted = None if self._classes else targets
            scales = Scales.measure(table, None if names is None else tuple(names), self.max_categories, wanted, self.private)
        elif not self._classes and (scales.targets is None or scales.targets.shape[1] != targets.shape[1]):
            raise InputError("the scales are of other targets: were they made by another kind of estimator?")
        choice = None if scales.shape is None or scales.filters else self._picture_maps(scales)
        if choice is not None:
            pictures = scales.encode(table.take(slice(0, FITTING)))[0]
            if self.private:
                scales = with_noise_filters(scales, pictures, choice, self.seed)
            else:
                scales = with_filters(scales, pictures, choice)
        core = self._make_core(scales, self._make_model(scales, self._outputs(targets), small))
        for part in by_group(waiting):
            core.learn(part.table, part.targets, part.group, course, self.scales is None, part.weights, names=self._names())
        return core

    def _make_core(self, scales: Scales, model: AnyModel) -> Core[AnyModel]:
        now, kept = self.answer == "now", int(self.fingerprints)
        return Core(
            scales,
            model,
            self.seed,
            self._classes,
            now=now,
            private=self.private,
            fingerprints=kept,
            later=self._warns_later,
        )

    def _course(self, fit: bool) -> Course:
        """How rows are gone through in `fit` and in `partial_fit`."""
        return Course()

    def _ready(self) -> Core[AnyModel]:
        """All that is learned so far; of rows that are still kept, a model that has learned them."""
        self._require_fitted()
        return self._core or self._begin(self._waiting, self._course(fit=False))

    # -- forgetting and merging -------------------------------------------------------------------------------------------

    def _forget(self, table: Table, targets: NDArray[Any], sample_weight: Any, group: Any, twice: bool) -> None:
        key = None if group is None else check_group(group)
        table, targets, weights = self._weighed(table, targets, sample_weight)
        wanted, times = torch.from_numpy(np.ascontiguousarray(targets)), None if weights is None else torch.from_numpy(weights)
        if self._core is not None:
            self._core.remember(int(self.fingerprints))
            self._core.forget(table, wanted, key, twice, times, self._names())
        else:
            self._waiting = without(self._waiting, Waiting(table, wanted, key, times))
        self._publish(anew=True)

    @one_at_a_time
    def forget_group(self, group: str | int) -> Self:
        """Unlearn all rows of a group (``partial_fit(..., group=...)``), without having the rows; exact up to rounding.

        Raises:
            InputError: there is no such group, or it is forgotten already; nothing has changed.
        """
        self._require_fitted()
        key = check_group(group)
        if self._core is not None:
            self._core.forget_group(key)
        elif any(part.group == key for part in self._waiting):
            self._waiting = [part for part in self._waiting if part.group != key]
        else:
            raise InputError(f"there is no group {key!r}: it was never learned, or is forgotten already")
        self._publish(anew=True)
        return self

    @property
    @one_at_a_time
    def groups_(self) -> list[str | int]:
        """The groups that can be forgotten."""
        self._require_fitted()
        return (
            list(self._core.groups.parts)
            if self._core
            else list(dict.fromkeys(w.group for w in self._waiting if w.group is not None))
        )

    def _both_ready(self, other: Any) -> tuple[Core[AnyModel], Core[AnyModel]]:
        """What two estimators have learned, if it can be merged."""
        if type(other) is not type(self):
            raise InputError(f"only another {type(self).__name__} can be merged, got {type(other).__name__}")
        self._require_fitted()
        other._require_fitted()
        mine, theirs = self._ready(), other._ready()
        if self.seed != other.seed or not mine.scales.same_map(theirs.scales):
            raise InputError(
                "the two estimators encode rows differently: make the second one with the scales_ and seed of the first, and "
                "with categories that both have seen in the same order"
            )
        if mine.private != theirs.private:
            raise InputError("one of the two estimators is private and the other is not: make both with the same `private`")
        return mine, theirs

    # -- files and copies -------------------------------------------------------------------------------------------------

    def _state(self, file: bool = False) -> State:
        """All that was learned, without the parameters; `file`: for one, without single rows of a private stream."""
        core = self._core
        names = getattr(self, "feature_names_in_", None)
        return {
            "columns": getattr(self, "n_features_in_", None),
            "names": None if names is None else [str(name) for name in names],
            "kinds": None if self._kinds is None else list(self._kinds),
            "shape": None if self._shape is None else list(self._shape),
            "waiting": [part.state_dict() for part in self._waiting],
            "core": None if core is None else core.state_dict(file) | {"model": core.model.state_dict()},
        }

    def _restore(self, state: State) -> None:
        """Take over what `_state` returned."""
        self._reset()
        self._learned = None
        if state["columns"] is not None:
            self.n_features_in_ = int(state["columns"])
        if state["names"] is not None:
            self.feature_names_in_ = np.array(state["names"], dtype=object)
        self._kinds = None if state["kinds"] is None else tuple(state["kinds"])
        self._shape = None if state["shape"] is None else tuple(state["shape"])
        self._waiting = [Waiting.from_state(part) for part in state["waiting"]]
        saved = state["core"]
        if saved is not None:
            scales = Scales.from_state(saved["scales"])
            core = self._make_core(scales, self._load_model(scales, saved["model"]))
            core.load_state_dict(saved)
            self._core = core

    @one_at_a_time
    def __getstate__(self) -> dict[str, Any]:
        """Parameters and what was learned, as plain values and tensors: for copies, and for those who choose to pickle."""
        return self._parts_of_state(file=True)

    @one_at_a_time
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        made.__setstate__(self._parts_of_state(file=False))
        return made

    def _parts_of_state(self, file: bool) -> dict[str, Any]:
        fitted = copied(self._state(file)) if "_core" in self.__dict__ else None
        if fitted is not None:
            self._publish(anew=True)  # copies go on with the same numbers
        return {"parameters": self.get_params(deep=False), "fitted": fitted}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state["parameters"].items():
            setattr(self, name, value)
        if state["fitted"] is not None:
            self._restore(state["fitted"])
            self._publish()

    @one_at_a_time
    def save(self, path: str | Path) -> None:
        """Write the estimator to one file, from which `hvcl.load` builds it again; atomically, also over an older file.

        The file holds parameters, scales, categories, labels and the learner, as safetensors with JSON in its header; during the
        warm-up the first rows. With `private` it holds no value of a row.
        """
        self._require_fitted()
        if self.private and (self._core is None or not self._core.private):
            raise InputError("rows were learned before private=True was set, and some of their values are kept: fit again")
        parameters = {name: value for name, value in self.get_params(deep=False).items() if name not in ("scales", "on_drift")}
        given = published(self.scales)
        state = {"fitted": self._state(file=True), "scales": None if given is None else given.state_dict()}
        write_saved(Path(path), "estimator", {"estimator": self._saved_as, "parameters": _plain(parameters)}, state)
        self._publish(anew=True)  # what is made from the file goes on with the same numbers

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The estimator that was saved in a file; it goes on bit-identically. `RunError` if the file holds something else."""
        made = load(path)
        if not isinstance(made, cls):
            raise RunError(f"{path} holds a {type(made).__name__}, where a {cls.__name__} was expected")
        return made


def load(path: str | Path) -> Any:
    """The estimator that was saved in a file. Its class is looked up by name: a file can name no code of its own."""
    described, state = read_saved(Path(path), "estimator")
    known = {kind._saved_as: kind for kind in ContinualEstimator.__subclasses__()}
    if described.get("estimator") not in known:
        raise RunError(f"{path} holds a {described.get('estimator')}, which this version of hvcl does not know")
    kind = known[described["estimator"]]
    try:
        made = kind(**described["parameters"])
        if state["scales"] is not None:
            made.set_params(scales=Scales.from_state(state["scales"]))
        made._restore(state["fitted"])
        made._publish()
    except RunError:
        raise
    except UnknownNameError as error:
        raise RunError(f"{path} cannot be loaded ({error}): install what the method came with") from None
    except (AttributeError, IndexError, InputError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise RunError(f"{path} does not fit this version of hvcl ({error})") from None
    return made


def _plain(value: Any) -> Any:
    """Parameters as JSON has them."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def same_length(x: Any, y: Any) -> None:
    """Raise `ValueError` as scikit-learn does if there are not as many targets as rows."""
    check_consistent_length(x, y)
