"""A classifier for streams, with scikit-learn's conventions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d
from torch import Tensor

from hvcl.core.configuration import configure
from hvcl.core.errors import InputError
from hvcl.core.state import State
from hvcl.estimators.base import ContinualEstimator, same_length
from hvcl.estimators.core import ROWS, Core, Course
from hvcl.estimators.groups import check_group
from hvcl.estimators.labels import Labels
from hvcl.estimators.maps import FEW_FEATURES, check_features
from hvcl.estimators.models import ClassModel, exact_settings, picture_maps
from hvcl.estimators.now import DriftEvent
from hvcl.estimators.scales import Scales
from hvcl.estimators.tables import Table, is_missing
from hvcl.estimators.threads import one_at_a_time
from hvcl.features import FeatureChoice
from hvcl.learners import Exact, method


class ContinualClassifier(ClassifierMixin, ContinualEstimator[ClassModel]):  # type: ignore[misc]
    """Learns classes from rows that come a few at a time, and never forgets them unless it is told to.

    With the default method `exact` everything that is learned are sums over the rows: the order of the rows does not matter,
    labels may appear at any time, parts learned at different sites are merged exactly, and rows are forgotten exactly.

    Args:
        method: name of any registered method (``hvcl list``).
        method_settings: of the method. `exact` is used without its gate unless ``{"gate": True}`` says otherwise: with one,
            shifts of the stream open experts, and the order of the rows matters.
        features: number of random features of `exact`; None: from the number of columns (`hvcl.estimators.maps`); of pictures
            1,600.
        priors: "learned": classes are as frequent as in the stream; "uniform": all classes that were learned are equally
            frequent, whatever the stream holds of each.
        answer: "now": what holds now, where the relation of rows and targets may change (`hvcl.estimators.concepts`); rows that
            `fit` is given hold all of them. "ever": of everything ever learned, whatever its order. Of methods whose answers are
            no sums: as the method has it.
        on_drift: is called with a `DriftEvent` after every call that showed a change of the concept. It is not saved.
        scales: another estimator's `scales_`; None: measured on the first rows.
        warmup: rows that scales are measured on. They are kept until then. `fit` takes all its rows.
        max_categories: columns of the encoding for one column of categories; later categories share one more.
        epochs: passes of `fit`; of methods trained by gradient only.
        batch_size: rows of a step; of methods trained by gradient only.
        seed: of everything random.
        private: no value of a row is kept after a call, or gets into any file. The first call must bring `warmup` rows unless
            `scales` are given; what else differs is in docs/estimators.
        fingerprints: rows whose fingerprints are kept, the newest ones, at 24 bytes each (`hvcl.estimators.ledger`). They say
            which expert and pools have learned a row that is to be forgotten. Where answers are those of now only.

    Attributes:
        classes_: labels so far, sorted. Columns of `predict_proba` are in this order, and move when a label appears.
        n_features_in_: columns of X.
        feature_names_in_: their names, where X had any.
        scales_: the fixed scales of the stream.
        groups_: the groups that can be forgotten.
        drift_: changes of the concept so far.
    """

    _saved_as = "ContinualClassifier"
    _classes = True

    def __init__(
        self,
        method: str = "exact",
        *,
        method_settings: dict[str, Any] | None = None,
        features: int | None = None,
        priors: Literal["learned", "uniform"] = "learned",
        answer: Literal["now", "ever"] = "now",
        on_drift: Callable[[DriftEvent], None] | None = None,
        scales: Scales | None = None,
        warmup: int = 256,
        max_categories: int = 16,
        epochs: int = 1,
        batch_size: int = 128,
        seed: int = 0,
        private: bool = False,
        fingerprints: int = 100_000,
    ) -> None:
        self.method = method
        self.method_settings = method_settings
        self.features = features
        self.priors = priors
        self.answer = answer
        self.on_drift = on_drift
        self.scales = scales
        self.warmup = warmup
        self.max_categories = max_categories
        self.epochs = epochs
        self.batch_size = batch_size
        self.seed = seed
        self.private = private
        self.fingerprints = fingerprints

    # -- learning ---------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Forget everything, and learn from all rows; with `exact` the order of a table's rows makes no difference at all."""
        with self._anew():
            self._partial_fit(X, y, None, sample_weight, None, fit=True)
        self._announce()
        return self

    @one_at_a_time
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None, *, group: str | int | None = None
    ) -> Self:
        """Learn from more rows.

        Args:
            X: rows.
            y: their labels: texts, whole numbers, numbers or truth values.
            classes: labels that may appear, in any call. None need be given: labels that were not announced are added when they
                appear. Methods whose outputs are fixed (all but `exact`) take those of the first call, and refuse others.
            sample_weight: how many rows each row counts as: 3 as three, 0 as none, and with `exact` also 0.5 as half a row; other
                methods count whole rows only.
            group: a name for all these rows, by which `forget_group` can take them out again; its price in memory is in
                `hvcl.estimators.groups`.
        """
        if "_core" not in self.__dict__:
            self._reset()
        self._partial_fit(X, y, classes, sample_weight, group, fit=False)
        self._announce()
        return self

    def _reset(self) -> None:
        if self.priors not in ("learned", "uniform"):
            raise InputError(f"priors must be 'learned' or 'uniform', got {self.priors!r}")
        for name in ("epochs", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        check_features(self.features)
        if self.method_settings is not None and not isinstance(self.method_settings, dict):
            raise InputError(f"method_settings must be a dict of settings of the method, got {self.method_settings!r}")
        configure(method(self.method).config, dict(self.method_settings or {}))
        if self.private and self._order_matters():
            raise InputError(
                "private=True goes with method 'exact' without a gate, which learns nothing but sums over the rows: other "
                "methods, and the gate, keep examples or features of single ones"
            )
        super()._reset()
        self._labels = Labels()

    def _partial_fit(self, X: Any, y: Any, classes: Any, weights: Any, group: Any, fit: bool) -> None:
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        table = self._read(X)
        y = _to_numpy(y)
        if not (type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "biuU" and len(y) == len(table)):
            given = y if isinstance(y, list | tuple) else ()  # of which numpy would make the text "nan"
            y = column_or_1d(y, warn=True)
            if any(map(is_missing, given)) or (y.dtype.kind == "O" and any(map(is_missing, y))):
                raise InputError("labels hold NaN or None: leave rows without a label out")
            same_length(table.numbers if table.pictures is None else table.pictures, y)
            check_classification_targets(y)  # which whole numbers, truth values and texts could only pass
        table, y, times = self._weighed(table, y, weights)
        self._learn_table(table, y, classes, times, group, fit)

    def _learn_table(
        self, table: Table, y: Any, classes: Any, weights: NDArray[np.float64] | None, group: Any, fit: bool
    ) -> None:
        key = None if group is None else check_group(group)
        labels = self._labels.copy()
        if classes is not None:
            labels.add(np.unique(np.asarray(classes)))
        labels.add(y)
        if fit and table.pictures is None and not self._order_matters():
            units = labels.units(y)
            order = table.canonical_order(units if weights is None else np.stack([units, weights], 1))
            table, y, weights = table.take(order), y[order], None if weights is None else weights[order]
        before, self._labels = self._labels, labels
        try:
            if self._core is not None:
                self._core.model.grow(len(labels.values))
            self._learn(table, torch.from_numpy(labels.units(y)), key, self._course(fit), fit, weights)
        except BaseException:
            self._labels = before
            raise
        self.classes_ = labels.classes
        self._publish()

    def _order_matters(self) -> bool:
        settings = self.method_settings or {}
        return method(self.method).learner is not Exact or bool(settings.get("gate") or settings.get("separate"))

    def _counts_parts(self) -> bool:
        return method(self.method).learner is Exact and not (self.method_settings or {}).get("separate")

    def _course(self, fit: bool) -> Course:
        if method(self.method).learner is Exact:
            return Course(ROWS, ordered=not fit)
        return Course(self.batch_size, self.epochs if fit else 1, self.seed)

    @one_at_a_time
    def end_task(self) -> Self:
        """A task ends here; methods that consolidate at boundaries want to know.

        Those that must know the size of a task beforehand (ewc, mas, ncl, tlr, den) refuse: `hvcl.create` can tell them.
        """
        core = self._ready()
        try:
            core.model.learner.end_task()
        except InputError as error:
            raise InputError(
                f"method {self.method!r} cannot be told of boundaries here ({error}): that is an argument of hvcl.create; of the "
                "methods that take boundaries as they come, there is e.g. 'lwf'"
            ) from None
        self._core, self._waiting = core, []
        self._publish()
        return self

    # -- predicting -------------------------------------------------------------------------------------------------------

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities of `classes_` ``[n, classes]``.

        Those of outliers are drawn towards all classes being equally likely, the more the farther they are: nothing is known
        about what is far from everything that was learned.
        """
        with self._asked() as (learned, core):
            return self._probabilities(core, self._encoded(learned, core, X), learned.labels)

    def _probabilities(self, core: Core[ClassModel], x: Tensor, labels: Labels | None) -> NDArray[np.float64]:
        tracker = core.tracker
        p = core.model.probabilities(x).numpy() if tracker is None or tracker.filter.alone else tracker.answers(x)
        return self._ranked(core, p, core.novelty.trust(core.novelty(x)), labels)

    def _ranked(
        self, core: Core[ClassModel], p: NDArray[np.float64], trust: NDArray[np.float64], labels: Labels | None
    ) -> NDArray[np.float64]:
        """Probabilities of classes from those of the units ``[n, units]``, and how far each row is from being an outlier."""
        count = np.zeros(p.shape[1])
        count[: len(core.novelty.count)] = core.novelty.count.numpy()[: p.shape[1]]
        seen = count > 0
        some = int(seen.sum())
        if some:
            if some < len(seen):
                p = np.where(seen, p, 0)
            if self.priors == "uniform":
                p = p / np.where(seen, count, 1)
            p = p / p.sum(1, keepdims=True)
            if trust.min() < 1:
                p = trust[:, None] * p + (1 - trust[:, None]) * seen / some
        order = (labels or self._labels).order
        # a call that was refused may have left room for labels that there are not
        missing = max(len(order) - p.shape[1], 0)
        return np.asarray((np.pad(p, ((0, 0), (0, missing))) if missing else p)[:, order])

    def predict(self, X: Any, abstain: float | None = None) -> NDArray[Any]:
        """The most probable label of each row.

        Args:
            X: rows.
            abstain: a share of ordinary rows, e.g. 0.05. Rows that are more unlike the learned ones than all but this share of
                these were get None, and the answer is an array of objects.
        """
        with self._asked() as (learned, core):
            x, labels = self._encoded(learned, core, X), learned.labels or self._labels
            answers: NDArray[Any] = labels.classes[self._probabilities(core, x, labels).argmax(1)]
            if abstain is not None:
                answers = answers.astype(object)
                answers[self._outliers(core, x, abstain)] = None
        return answers

    # -- forgetting and merging -------------------------------------------------------------------------------------------

    @one_at_a_time
    def forget(self, X: Any, y: Any, sample_weight: Any = None, *, group: str | int | None = None, twice: bool = False) -> Self:
        """Unlearn rows exactly (up to rounding): the sums become what they would be without them, but for the fixed scales.

        As of now, too: the sums of the pools and experts that have learned them lose them, by their fingerprints; how far each is
        believed is approximate (`hvcl.estimators.concepts`). For rows older than the `fingerprints` that are kept, whatever may
        have learned them begins anew, as far as it has something left of them.

        Args:
            X: rows as they were learned.
            y: their labels.
            sample_weight: the weights that they were learned with, if any.
            group: the group that they were learned in, if any.
            twice: allow rows that equal rows which were forgotten before: such rows were learned several times.

        Raises:
            InputError: they cannot all have been learned, or are forgotten already; nothing has changed.
        """
        self._require_fitted()
        table = self._read(X)
        y = column_or_1d(_to_numpy(y))
        same_length(table.numbers if table.pictures is None else table.pictures, y)
        self._forget(table, self._labels.units(y), sample_weight, group, twice)
        return self

    @one_at_a_time
    def merge(self, other: ContinualClassifier) -> ContinualClassifier:
        """A new classifier that has learned what both have; method `exact` only.

        With ``answer="ever"`` exactly as if it had seen the rows of both; as of now the pools of recent rows are those of both,
        and concepts are found anew.

        Both must have the same seed and scales: ``ContinualClassifier(scales=first.scales_, seed=first.seed)``.
        """
        mine, theirs = self._both_ready(other)
        labels = self._labels.copy()
        if other._labels.values:
            labels.add(np.array(other._labels.values))
        units = labels.units(np.array(other._labels.values)).tolist()
        outputs = len(labels.values)
        result = ContinualClassifier(**self.get_params(deep=False))
        result._restore(self._state() | {"core": None, "waiting": []})
        model = mine.model.merged(theirs.model, units, outputs)
        core = self._make_core(mine.scales.joined(theirs.scales), model)
        core.load_state_dict(mine.state_dict())
        core.absorb(theirs, units[: len(theirs.novelty.count)], units)
        result._core, result._labels, result.classes_ = core, labels, labels.classes
        result._publish()
        return result

    # -- the parts --------------------------------------------------------------------------------------------------------

    def _outputs(self, targets: Tensor) -> int:
        return len(self._labels.values)

    def _make_model(self, scales: Scales, outputs: int, small: bool = False) -> ClassModel:
        settings = dict(self.method_settings or {})
        features = self.features
        if small and features is None and not settings and method(self.method).learner is Exact and scales.shape is None:
            features = FEW_FEATURES
        return ClassModel(scales, outputs, self.method, settings, features, self.seed)

    def _targets_learned(self) -> tuple[Labels | None, bool | None]:
        return self._labels, None

    def _apart(self) -> bool:
        return method(self.method).learner is Exact and not (self.method_settings or {}).get("separate")

    def _names(self) -> list[Any] | None:
        return self._labels.values

    def _picture_maps(self, scales: Scales) -> FeatureChoice | None:
        if method(self.method).learner is not Exact:
            return None
        config = exact_settings(scales, dict(self.method_settings or {}), self.features)
        return None if config.separate else picture_maps(scales, config, self.seed)

    def _load_model(self, scales: Scales, state: State) -> ClassModel:
        return ClassModel.from_state(state, self.method)

    def _state(self, file: bool = False) -> State:
        return super()._state(file) | {"labels": self._labels.state_dict()}

    def _restore(self, state: State) -> None:
        super()._restore(state)
        self._labels = Labels.from_state(state["labels"])
        if self._labels.values:
            self.classes_ = self._labels.classes


def _to_numpy(y: Any) -> Any:
    """Labels of tensors as arrays; everything else as it is."""
    return y.detach().cpu().numpy() if isinstance(y, Tensor) else y
