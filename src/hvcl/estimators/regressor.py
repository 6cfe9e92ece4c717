"""A regressor for streams, with scikit-learn's conventions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import stdtrit
from sklearn.base import RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_array
from torch import Tensor

from hvcl.core.errors import InputError
from hvcl.core.state import State
from hvcl.estimators.base import ContinualEstimator, same_length
from hvcl.estimators.core import Core, Course
from hvcl.estimators.groups import check_group
from hvcl.estimators.labels import Labels
from hvcl.estimators.maps import FEW_FEATURES, check_features, make_map, picture_choice, picture_map
from hvcl.estimators.models import RegressionModel
from hvcl.estimators.now import DriftEvent
from hvcl.estimators.scales import Scales
from hvcl.estimators.tables import Table
from hvcl.estimators.threads import one_at_a_time
from hvcl.features import FeatureChoice, RandomFeatures


class ContinualRegressor(RegressorMixin, ContinualEstimator[RegressionModel]):  # type: ignore[misc]
    r"""Bayesian linear regression on fixed features of rows that come a few at a time; one or several targets.

    All that is learned are sums over the rows (`hvcl.posteriors.MatrixNormal`): the order of the rows does not matter, parts
    learned at different sites are merged exactly, and rows are forgotten exactly. Noise and ridge maximise the evidence.

    Args:
        features: number of random features; None: from the number of columns (`hvcl.estimators.maps`); of pictures 1,600.
        ridge: prior precision over noise precision; None: from the evidence.
        answer: "now": what holds now, where the relation of rows and targets may change (`hvcl.estimators.concepts`); rows that
            `fit` is given hold all of them. "ever": of everything ever learned, whatever its order. Of methods whose answers are
            no sums: as the method has it.
        on_drift: is called with a `DriftEvent` after every call that showed a change of the concept. It is not saved.
        scales: another estimator's `scales_`; None: measured on the first rows.
        warmup: rows that scales are measured on. They are kept until then. `fit` takes all its rows.
        max_categories: columns of the encoding for one column of categories; later categories share one more.
        seed: of everything random.
        private: no value of a row is kept after a call, or gets into any file. The first call must bring `warmup` rows unless
            `scales` are given; what else differs is in docs/estimators.
        fingerprints: rows whose fingerprints are kept, the newest ones, at 24 bytes each (`hvcl.estimators.ledger`). They say
            which expert and pools have learned a row that is to be forgotten. Where answers are those of now only.

    Attributes:
        n_features_in_: columns of X.
        feature_names_in_: their names, where X had any.
        scales_: the fixed scales of the stream.
        groups_: the groups that can be forgotten.
        drift_: changes of the concept so far.
    """

    _saved_as = "ContinualRegressor"
    _classes = False

    def __init__(
        self,
        *,
        features: int | None = None,
        ridge: float | None = None,
        answer: Literal["now", "ever"] = "now",
        on_drift: Callable[[DriftEvent], None] | None = None,
        scales: Scales | None = None,
        warmup: int = 256,
        max_categories: int = 16,
        seed: int = 0,
        private: bool = False,
        fingerprints: int = 100_000,
    ) -> None:
        self.features = features
        self.ridge = ridge
        self.answer = answer
        self.on_drift = on_drift
        self.scales = scales
        self.warmup = warmup
        self.max_categories = max_categories
        self.seed = seed
        self.private = private
        self.fingerprints = fingerprints

    def __sklearn_tags__(self) -> Tags:
        """Several targets are welcome."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    # -- learning ---------------------------------------------------------------------------------------------------------

    @one_at_a_time
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Forget everything, and learn from all rows; the order of a table's rows makes no difference at all."""
        with self._anew():
            self._partial_fit(X, y, sample_weight, None, fit=True)
        self._announce()
        return self

    @one_at_a_time
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, *, group: str | int | None = None) -> Self:
        """Learn from more rows.

        Args:
            X: rows.
            y: numbers ``[n]``, or ``[n, C]`` for several targets.
            sample_weight: how many rows each row counts as: 3 as three, 0.5 as half a row, 0 as none.
            group: a name for all these rows, by which `forget_group` can take them out again; its price in memory is in
                `hvcl.estimators.groups`.
        """
        if "_core" not in self.__dict__:
            self._reset()
        self._partial_fit(X, y, sample_weight, group, fit=False)
        self._announce()
        return self

    def _reset(self) -> None:
        super()._reset()
        check_features(self.features)
        number = isinstance(self.ridge, int | float | np.number) and not isinstance(self.ridge, bool)
        if self.ridge is not None and not (number and 0 < self.ridge < math.inf):
            raise InputError(f"ridge must be a positive number, or None, got {self.ridge!r}")
        self._flat: bool | None = None

    def _partial_fit(self, X: Any, y: Any, weights: Any, group: Any, fit: bool) -> None:
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        table = self._read(X)
        targets, flat = self._targets(table, y)
        table, targets, times = self._weighed(table, targets, weights)
        self._learn_table(table, targets, flat, times, group, fit)

    def _learn_table(
        self,
        table: Table,
        targets: NDArray[np.float64],
        flat: bool,
        weights: NDArray[np.float64] | None,
        group: Any,
        fit: bool,
    ) -> None:
        if fit and table.pictures is None:
            order = table.canonical_order(targets if weights is None else np.column_stack([targets, weights]))
            table, targets, weights = table.take(order), targets[order], None if weights is None else weights[order]
        wanted = torch.from_numpy(np.ascontiguousarray(targets))
        self._learn(table, wanted, None if group is None else check_group(group), self._course(fit), fit, weights)
        if self._flat is None:
            self._flat = flat
        self._publish()

    def _targets(self, table: Table, y: Any) -> tuple[NDArray[np.float64], bool]:
        """Targets ``[n, C]``, finite, as many as before; and whether they came as ``[n]``."""
        values = y.detach().cpu().numpy() if isinstance(y, Tensor) else y
        checked = check_array(values, ensure_2d=False, dtype=np.float64, input_name="y")
        if checked.ndim > 2:
            raise InputError(f"y must be numbers [n] or [n, targets], got shape {checked.shape}")
        same_length(table.numbers if table.pictures is None else table.pictures, checked)
        targets: NDArray[np.float64] = checked.reshape(len(checked), -1)
        learned = (
            self._core.model.outputs if self._core else self._waiting[0].targets.shape[1] if self._waiting else targets.shape[1]
        )
        if targets.shape[1] != learned:
            raise InputError(f"y has {targets.shape[1]} targets, and {learned} were learned")
        return targets, checked.ndim == 1

    def _course(self, fit: bool) -> Course:
        return Course(ordered=not fit)

    # -- predicting -------------------------------------------------------------------------------------------------------

    def predict(
        self, X: Any, return_std: bool = False, abstain: float | None = None
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The expected targets of each row; with `return_std` their standard deviations as well, the noise included.

        Args:
            X: rows.
            return_std: also give standard deviations.
            abstain: a share of ordinary rows, e.g. 0.05. Rows that are more unlike the learned ones than all but this share of
                these were get NaN.
        """
        with self._asked() as (learned, core):
            x = self._encoded(learned, core, X)
            mean, variance = self._moments(core, x)
            if abstain is not None:
                outliers = self._outliers(core, x, abstain)
                mean[outliers] = variance[outliers] = np.nan
        shaped = _shaped(mean, learned.flat)
        return (shaped, _shaped(np.sqrt(variance), learned.flat)) if return_std else shaped

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        r"""Lower and upper ends of intervals that hold the targets of new rows with probability `level`, if the model holds.

        The predictive distribution is a Student t with n - 1 degrees of freedom around the mean, for the noise is estimated:
        :math:`\mu \pm t_{n-1}\, \sigma \sqrt{1 + 1/n + (\phi - \bar\phi)^T U (\phi - \bar\phi)}`.
        """
        if isinstance(level, bool) or not isinstance(level, float | np.floating) or not 0 < level < 1:
            raise InputError(f"level must lie between 0 and 1, got {level!r}")
        with self._asked() as (learned, core):
            mean, variance = self._moments(core, self._encoded(learned, core, X))
            freedom = max(core.model.regression.count - 1, 1)
        half = stdtrit(freedom, 0.5 + level / 2) * np.sqrt(variance)
        return _shaped(mean - half, learned.flat), _shaped(mean + half, learned.flat)

    def _moments(self, core: Core[RegressionModel], x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Means and variances of the targets ``[n, C]``."""
        model = core.model
        mean, variance = (values.numpy() for values in model.predict(x))
        spread, centre = model.spread.numpy(), model.centre.numpy()
        if core.tracker is not None and not core.tracker.filter.alone:
            mean, variance = core.tracker.moments(x, variance / spread**2)
            mean, variance = mean * spread + centre, variance * spread**2
        # far from all that was learned the answer is a guess: the variance grows with the squared distance
        trust = core.novelty.trust(core.novelty(x))[:, None]
        return mean, variance / trust + spread**2 * (1 / trust - 1)

    # -- forgetting and merging -------------------------------------------------------------------------------------------

    @one_at_a_time
    def forget(self, X: Any, y: Any, sample_weight: Any = None, *, group: str | int | None = None, twice: bool = False) -> Self:
        """Unlearn rows exactly (up to rounding): the sums become what they would be without them, but for the fixed scales.

        As of now, too: the sums of the pools and experts that have learned them lose them, by their fingerprints; how far each is
        believed is approximate (`hvcl.estimators.concepts`). For rows older than the `fingerprints` that are kept, whatever may
        have learned them begins anew, as far as it has something left of them.

        Args:
            X: rows as they were learned.
            y: their targets.
            sample_weight: the weights that they were learned with, if any.
            group: the group that they were learned in, if any.
            twice: allow rows that equal rows which were forgotten before: such rows were learned several times.

        Raises:
            InputError: they cannot all have been learned, or are forgotten already; nothing has changed.
        """
        self._require_fitted()
        table = self._read(X)
        self._forget(table, self._targets(table, y)[0], sample_weight, group, twice)
        return self

    @one_at_a_time
    def merge(self, other: ContinualRegressor) -> ContinualRegressor:
        """A new regressor that has learned what both have.

        With ``answer="ever"`` exactly as if it had seen the rows of both; as of now the pools of recent rows are those of both,
        and concepts are found anew.

        Both must have the same seed and scales: ``ContinualRegressor(scales=first.scales_, seed=first.seed)``.
        """
        mine, theirs = self._both_ready(other)
        if self.ridge != other.ridge or self.features != other.features:
            raise InputError("the two regressors have different settings: give both the same features and ridge")
        result = ContinualRegressor(**self.get_params(deep=False))
        result._restore(self._state() | {"core": None, "waiting": []})
        scales = mine.scales.joined(theirs.scales)
        core = self._make_core(scales, self._load_model(scales, mine.model.state_dict()))
        core.load_state_dict(mine.state_dict())
        core.model.merge(theirs.model)
        core.absorb(theirs, [0] * len(theirs.novelty.count), list(range(core.model.outputs)))
        result._core = core
        result._publish()
        return result

    # -- the parts --------------------------------------------------------------------------------------------------------

    def _outputs(self, targets: Tensor) -> int:
        return targets.shape[1]

    def _make_model(self, scales: Scales, outputs: int, small: bool = False) -> RegressionModel:
        assert scales.targets is not None
        centre, spread = scales.targets
        choice = self._picture_maps(scales)
        features = FEW_FEATURES if small and self.features is None else self.features
        made = make_map(scales, features, self.seed) if choice is None else picture_map(scales, choice)
        return RegressionModel(made, centre, spread, self.ridge)

    def _targets_learned(self) -> tuple[Labels | None, bool | None]:
        return None, self._flat

    def _apart(self) -> bool:
        return True

    def _names(self) -> list[Any] | None:
        return None

    def _picture_maps(self, scales: Scales) -> FeatureChoice | None:
        return None if scales.shape is None else picture_choice(scales.shape, self.features, self.seed)

    def _load_model(self, scales: Scales, state: State) -> RegressionModel:
        choice = self._picture_maps(scales)
        if choice is not None:
            return RegressionModel.from_state(state, picture_map(scales, choice))
        return RegressionModel.from_state(state, RandomFeatures(scales.input_shape, len(state["map"]["shift"]), seed=self.seed))

    def _state(self, file: bool = False) -> State:
        return super()._state(file) | {"flat": self._flat}

    def _restore(self, state: State) -> None:
        super()._restore(state)
        self._flat = state["flat"]


def _shaped(values: NDArray[np.float64], flat: bool | None) -> NDArray[np.float64]:
    """Numbers of all targets, as these came."""
    return values[:, 0] if flat else values
