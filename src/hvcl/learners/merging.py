"""Merging `exact` learners of two parts of a stream."""

from __future__ import annotations

import copy

from hvcl.core.errors import InputError
from hvcl.learners.conjugate import SharedExperts
from hvcl.learners.methods.exact import Exact


def merge(a: Exact, b: Exact, *, apart: bool = False) -> Exact:
    """A learner that has learned what `a` and `b` have, exactly as if it had seen the streams of both.

    Args:
        a: not changed.
        b: not changed. Must have the same feature map, e.g. from ``a.empty_copy()``.
        apart: expert m of `b` is not expert m of `a` (they saw different tasks): those of `b` are appended to those of `a`.

    Raises:
        InputError: if the problems, settings or feature maps differ, or every expert has a feature map of its own.
    """

    def kind(learner: Exact) -> tuple[object, ...]:
        problem = learner.problem
        return problem.input_shape, problem.outputs, problem.task_outputs, learner.experts_given, learner.config

    for learner in (a, b):
        if not isinstance(learner, Exact):
            raise InputError(f"only learners of the method exact can be merged, got a {type(learner).__name__}")
    if kind(a) != kind(b):
        raise InputError("only learners of the same problem with the same settings can be merged")
    result = copy.deepcopy(a)
    other = copy.deepcopy(b)
    result.end_warmup()
    other.end_warmup()
    if other.experts is None:
        return result
    if result.experts is None:
        return other
    if not isinstance(result.experts, SharedExperts) or not isinstance(other.experts, SharedExperts):
        raise InputError("separate experts have feature maps of their own and cannot be merged: use shared ones")
    first = 1 + max((r.expert for r in result.expert_log.records), default=-1) if apart else 0
    result.experts.merge(other.experts, first)
    result.expert_log.merge(other.expert_log, first)
    for expert, into in result.experts.joined.items():
        result.expert_log.join(expert, into)
    result.step += other.step
    result.task = result.task + other.task + 1 if apart else max(result.task, other.task)
    result.last_experts = None
    return result
