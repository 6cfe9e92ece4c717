"""Contract tests for methods of your own: what every learner and every agent of hvcl must do, whatever it learns by.

`check_learner("mine")` runs all of `LEARNER_CHECKS` on a registered method, `check_agent("mine")` all of `AGENT_CHECKS`; the
first broken promise raises `AssertionError` with one sentence, and errors of the method's own pass through. With pytest, a test
each::

    @pytest.mark.parametrize("check", LEARNER_CHECKS)
    def test_mine(check):
        LEARNER_CHECKS[check](LearnerCase("mine", {"hidden": (16,), "learning_rate": 0.01}))

The problems are tiny (four inputs, a few hundred examples): give settings with which the method learns them in about a hundred
steps.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hvcl.core.errors import InputError, RunError
from hvcl.core.problem import Problem
from hvcl.core.state import State, copied
from hvcl.evaluation import evaluate
from hvcl.learners import Learner, create, known_methods, load
from hvcl.runs import run
from hvcl.streams import Batch, Scenario, Stream, StreamConfig, TaskEnd, from_arrays

if TYPE_CHECKING:
    from hvcl.rl import Agent

INPUTS = 4
"""Numbers in an example of the problems that learners are checked on."""


def check_learner(method: str | type[Learner], **settings: Any) -> None:
    """Raise `AssertionError` unless a registered method keeps the contract of `hvcl.learners.Learner`.

    Args:
        method: its name, or its class.
        settings: with which it learns a tiny problem in about a hundred steps, e.g. ``hidden=(16,), learning_rate=0.01``.
    """
    if not isinstance(method, str):
        names = [name for name, found in known_methods().items() if found.learner is method]
        shown = getattr(method, "__name__", repr(method))
        _require(bool(names), f"{shown} is not a registered method: give the name or the class of one (hvcl.learners.register)")
        method = names[0]
    case = LearnerCase(method, settings)
    for name, check in LEARNER_CHECKS.items():
        _run_check(name, check, case)


def _run_check(name: str, check: Callable[[Any], None], case: Any) -> None:
    """One check; whatever a method raises of its own becomes one sentence."""
    try:
        check(case)
    except AssertionError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise AssertionError(f"{case.method}, check {name!r}: raises {type(error).__name__}: {reason}") from error


RANDOM = "build modules and draw numbers within a state of its own (hvcl.core.random.RandomState(seed).active())"
"""What to do about a method that draws from a global generator."""


@dataclass(frozen=True)
class LearnerCase:
    """A method with settings for tiny problems."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)

    def create(self, problem: Problem, seed: int = 1) -> Learner:
        """A new learner."""
        return create(self.method, problem, seed, **self.settings)

    def taught(self, stream: Stream, events: int, seed: int = 1) -> Learner:
        """A learner that has learned from the first events of a stream."""
        learner = self.create(stream.problem, seed)
        feed(learner, list(stream.events())[:events])
        return learner


def blobs(tasks: int = 1, examples: int = 200, inputs: int = INPUTS) -> tuple[Tensor, Tensor]:
    """Two classes a task, `examples` of each task, far apart."""
    random = torch.Generator().manual_seed(0)
    y = torch.arange(examples * tasks) % (2 * tasks)
    centres = 3 * torch.randn(2 * tasks, inputs, generator=random)
    return centres[y] + 0.3 * torch.randn(len(y), inputs, generator=random), y


def tiny_stream(
    scenario: str = "domain", task_free: bool = False, *, tasks: int = 2, epochs: int = 5, swapped: bool = False
) -> Stream:
    """Tasks of two classes, 10 batches of 20 an epoch; with the two labels of each task swapped, if asked."""
    x, y = blobs(tasks)
    y = y ^ 1 if swapped else y
    config = StreamConfig(scenario=Scenario(scenario), task_free=task_free, batch_size=20, epochs=epochs)
    return from_arrays(x, y, x, y, classes_per_task=2, config=config)


def feed(learner: Learner, events: list[Batch | TaskEnd]) -> list[dict[str, float]]:
    """Let a learner learn from some events; the terms of the batches."""
    terms = []
    for event in events:
        if isinstance(event, Batch):
            terms.append(learner.observe(event.x, event.y, event.task))
        elif event.announced:
            learner.end_task()
    return terms


def same(a: Any, b: Any) -> bool:
    """Whether two states agree in every bit; JSON's changes (lists for tuples, keys as strings) do not count."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        if not isinstance(b, dict) or {str(key) for key in a} != {str(key) for key in b}:
            return False
        others = {str(key): value for key, value in b.items()}
        return all(same(value, others[str(key)]) for key, value in a.items())
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def _require(kept: bool, broken: str) -> None:
    """An assertion that `python -O` keeps."""
    if not kept:
        raise AssertionError(broken)


def _refuses(kind: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except kind:
        return
    except Exception as error:
        raise AssertionError(f"{what} raises {type(error).__name__} ({error}), not {kind.__name__}") from error
    raise AssertionError(f"{what} raises no {kind.__name__}")


# -- learners ------------------------------------------------------------------------------------------------------------------


def check_learns(case: LearnerCase, scenario: str, task_free: bool) -> None:
    """Two classes that are far apart are told apart after ten passes over two hundred examples."""
    stream = tiny_stream(scenario, task_free, tasks=1, epochs=10)
    learner = case.create(stream.problem)
    if evaluate(learner, stream.tests, seen=0).accuracies[0] > 0.5:  # right by chance before it has learned anything
        stream = tiny_stream(scenario, task_free, tasks=1, epochs=10, swapped=True)
    accuracy = run(stream, learner).average_accuracy
    _require(accuracy > 0.97, f"{case.method} learns two classes that are far apart with an accuracy of {accuracy:.2f} only")


def check_probabilities(case: LearnerCase) -> None:
    """Predictions are probabilities, before learning and after; in Task-IL they are zero outside the head of the task."""
    for scenario in ("domain", "class", "task"):
        stream = tiny_stream(scenario)
        learner = case.create(stream.problem)
        x = torch.randn(10, INPUTS, generator=torch.Generator().manual_seed(1))
        heads = stream.problem.task_outputs
        for events in (0, 60):
            feed(learner, list(stream.events())[:events])
            for number in range(2):
                task = None if heads is None else torch.full((10,), number)
                p = learner.predict(x, task)
                place = f"{case.method}, {scenario}, after {events} events:"
                _require(p.shape == (10, stream.problem.outputs), f"{place} predictions have shape {tuple(p.shape)}")
                _require(p.dtype == torch.float32, f"{place} predictions are {p.dtype}, not float32")
                _require(not p.requires_grad, f"{place} predictions carry a gradient")
                fits = bool(p.isfinite().all() and (p >= 0).all()) and torch.allclose(p.sum(1), torch.ones(10), atol=1e-4)
                _require(fits, f"{place} predictions are no probabilities")
                if heads is not None:
                    outside = [unit for unit in range(stream.problem.outputs) if unit not in heads[number]]
                    _require(bool((p[:, outside] == 0).all()), f"{place} outputs of another task's head are not zero")


def check_terms(case: LearnerCase) -> None:
    """`observe` returns finite numbers by name and leaves its arguments alone; sizes and memory are stated."""
    stream = tiny_stream()
    learner = case.create(stream.problem)
    x, y = next(iter(stream.batches()))
    before = x.clone(), y.clone()
    terms = learner.observe(x, y)
    _require(isinstance(terms, dict), f"{case.method}.learn returns {type(terms).__name__}, not the named terms of the loss")
    p = learner.predict(x)
    _require(isinstance(p, Tensor), f"{case.method}.infer returns {type(p).__name__}, not a tensor of probabilities")
    fits = p.shape == (len(x), stream.problem.outputs)
    _require(fits, f"{case.method}.infer returns the shape {tuple(p.shape)}, not [B, outputs]")
    _require(torch.equal(x, before[0]) and torch.equal(y, before[1]), f"{case.method} changes the batch that it is given")
    _require(
        all(isinstance(name, str) and isinstance(value, float | int) and math.isfinite(value) for name, value in terms.items()),
        f"{case.method}.observe returns {terms}, not finite numbers by name",
    )
    _require(
        isinstance(learner.num_parameters, int) and learner.num_parameters >= 0, f"{case.method}: num_parameters is no count"
    )
    _require(isinstance(learner.memory, str), f"{case.method}: memory is no text")


def check_seed(case: LearnerCase) -> None:
    """The same seed gives the same numbers, whatever torch's global random state, which is left as it was."""
    stream = tiny_stream()
    found = []
    outside = torch.get_rng_state()
    try:
        for number in (1, 2):
            torch.manual_seed(number)
            before = torch.get_rng_state()
            learner = case.create(stream.problem, seed=5)
            terms = feed(learner, list(stream.events())[:55])
            x, _ = next(iter(stream.batches()))
            found.append((terms, learner.predict(x)))
            _require(torch.equal(torch.get_rng_state(), before), f"{case.method} changes torch's global random state: {RANDOM}")
    finally:
        torch.set_rng_state(outside)
    agree = found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
    _require(agree, f"{case.method} with the same seed gives other numbers when torch's global random state is another")


def check_predicting(case: LearnerCase) -> None:
    """Predicting changes nothing, and gives the same twice."""
    stream = tiny_stream()
    learner = case.taught(stream, 10)
    before = copied(learner.state_dict())
    x = torch.randn(7, INPUTS, generator=torch.Generator().manual_seed(1))
    first = learner.predict(x)
    _require(torch.equal(first, learner.predict(x)), f"{case.method} predicts something else when it is asked again")
    _require(same(before, learner.state_dict()), f"{case.method} changes its state by predicting")


def check_types(case: LearnerCase) -> None:
    """Inputs of other floating-point types and labels of other integer types are taken for what they are."""
    stream = tiny_stream()
    plain, other = case.create(stream.problem), case.create(stream.problem)
    for x, y in list(stream.batches())[:3]:
        one, two = plain.observe(x, y), other.observe(x.double(), y.int())
        _require(one == two, f"{case.method} learns something else from float64 inputs and int32 labels")
    _require(
        torch.equal(plain.predict(x), other.predict(x.double())), f"{case.method} predicts something else for float64 inputs"
    )


def check_bad_input(case: LearnerCase) -> None:
    """A batch that does not fit raises `InputError`, and nothing has changed."""
    learner = case.create(Problem((INPUTS,), 2))
    x, y = blobs(examples=6)
    learner.observe(x, y)
    nan = x.clone()
    nan[1, 2] = torch.nan
    bad: dict[str, tuple[Tensor, ...]] = {
        "NaN": (nan, y),
        "infinite inputs": (x / 0, y),
        "inputs of another shape": (x[:, :3], y),
        "an empty batch": (x[:0], y[:0]),
        "too few labels": (x, y[:2]),
        "labels that are no integers": (x, y.float()),
        "a label that is too large": (x, y + 1),
        "a negative label": (x, y - 1),
        "inputs that are no floating-point numbers": (x.long(), y),
        "task ids outside Task-IL": (x, y, torch.zeros_like(y)),
    }
    before = copied(learner.state_dict())
    for what, batch in bad.items():
        _refuses(InputError, partial(learner.observe, *batch), f"{case.method}.observe with {what}")
        _require(same(before, learner.state_dict()), f"{case.method} has changed after a batch with {what}")
    for what in ("NaN", "inputs of another shape", "an empty batch"):
        _refuses(InputError, partial(learner.predict, bad[what][0]), f"{case.method}.predict with {what}")
    aware = case.create(Problem((INPUTS,), 4, ((0, 1), (2, 3))))
    _refuses(InputError, partial(aware.observe, x, y), f"{case.method}.observe without task ids in Task-IL")
    _refuses(InputError, partial(aware.observe, x, y, y + 1), f"{case.method}.observe with an unknown task id")


def check_boundaries(case: LearnerCase) -> None:
    """A boundary before any data, and two in a row, are no error."""
    stream = tiny_stream()
    learner = case.create(stream.problem)
    learner.end_task()
    feed(learner, list(stream.events())[:3])
    learner.end_task()
    learner.end_task()
    x, y = next(iter(stream.batches()))
    learner.observe(x, y)
    _require(bool(learner.predict(x).isfinite().all()), f"{case.method} predicts no numbers after a task without data")


def check_resuming(case: LearnerCase) -> None:
    """A learner that was saved at any moment and loaded again goes on bit-identically."""
    stream = tiny_stream(epochs=2)
    events = list(stream.events())
    whole, first = case.create(stream.problem), case.create(stream.problem)
    straight = feed(whole, events)
    final = copied(whole.state_dict())
    x = torch.randn(5, INPUTS, generator=torch.Generator().manual_seed(1))
    before: list[dict[str, float]] = []
    done = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "learner.safetensors"
        for stop in (0, 1, 7, 20, 21, 22, 32):  # the boundary is the event after 20 batches
            before += feed(first, events[done:stop])
            done = stop
            first.save(path)
            second = load(path)
            _require(type(second) is type(first), f"{case.method} is loaded as a {type(second).__name__}")
            _require(
                second.problem == first.problem and second.config == first.config, f"{case.method} is loaded with other settings"
            )
            _require(torch.equal(first.predict(x), second.predict(x)), f"{case.method} predicts something else after loading")
            after = feed(second, events[stop:])
            place = f"{case.method}, saved after {stop} events and loaded,"
            _require(before + after == straight, f"{place} does not go on as if nothing had happened")
            _require(same(final, second.state_dict()), f"{place} ends with another state")
            _require(torch.equal(whole.predict(x), second.predict(x)), f"{place} ends with other predictions")


def check_state(case: LearnerCase) -> None:
    """A state is taken over whole by a learner of another seed, and shares nothing with the one that gave it."""
    stream = tiny_stream()
    events = list(stream.events())
    first, second = case.taught(stream, 60), case.create(stream.problem, seed=99)
    second.load_state_dict(first.state_dict())
    taken = copied(second.state_dict())
    _require(same(first.state_dict(), taken), f"{case.method} does not take over all of a state")
    feed(first, events[60:65])
    _require(same(second.state_dict(), taken), f"{case.method} keeps tensors of the state that it was given")
    third = case.create(stream.problem, seed=7)
    third.load_state_dict(taken)
    _require(
        feed(second, events[60:65]) == feed(third, events[60:65]), f"{case.method} does not go on from a state bit-identically"
    )


def check_foreign_states(case: LearnerCase) -> None:
    """A state that does not fit raises `RunError` and changes nothing; one that is taken is taken whole."""
    stream = tiny_stream()
    giver, learner = case.taught(stream, 60), case.taught(stream, 5, seed=2)
    own = copied(learner.state_dict())
    x, y = blobs(inputs=INPUTS + 1)
    other = case.create(Problem((INPUTS + 1,), 2, task_examples=(200,), task_steps=(10,)))
    other.observe(x[:20], y[:20])
    _refuses(RunError, partial(learner.load_state_dict, other.state_dict()), f"{case.method} with the state of another problem")
    _require(same(own, learner.state_dict()), f"{case.method} has changed after the state of another problem")
    _check_damaged(learner, own, giver.state_dict(), case.method)


def _check_damaged(owner: Any, own: State, state: State, name: str) -> None:
    for what, damaged in _damaged(state):
        try:
            owner.load_state_dict(damaged)
        except RunError:
            _require(same(own, owner.state_dict()), f"{name} has changed after a state with {what}, which it refused")
        except Exception as error:
            raise AssertionError(
                f"{name} raises {type(error).__name__} ({error}), not RunError, for a state with {what}"
            ) from error
        else:
            _require(same(damaged, owner.state_dict()), f"{name} takes a part of a state with {what}")
            owner.load_state_dict(own)


def _damaged(state: State) -> Iterator[tuple[str, State]]:
    """The state with something missing, something unknown, or a tensor of another shape, at every place."""
    for path in _places(state):
        name = ".".join(map(str, path)) or "the state"
        value = _at(state, path)
        if isinstance(value, dict):
            yield f"an unknown key in {name}", _with(state, path, {**value, "surplus": 1})
        if isinstance(value, Tensor):
            wrong = torch.cat([value, value], -1) if value.dim() else value.unsqueeze(0)
            yield f"{name} of another shape", _with(state, path, wrong)
        if path and isinstance(_at(state, path[:-1]), dict):
            rest = {key: item for key, item in _at(state, path[:-1]).items() if key != path[-1]}
            yield f"{name} missing", _with(state, path[:-1], rest)


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from _places(item, (*path, key))


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _with(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """With something else at a place; all other places are shared."""
    if not path:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[path[0]] = _with(value[path[0]], path[1:], new)
    return changed


LEARNER_CHECKS: dict[str, Callable[[LearnerCase], None]] = {
    "terms": check_terms,
    **{
        f"learns, {scenario}, {'task-free' if task_free else 'boundaries'}": partial(
            check_learns, scenario=scenario, task_free=task_free
        )
        for scenario in ("task", "domain", "class")
        for task_free in (False, True)
    },
    "probabilities": check_probabilities,
    "seed": check_seed,
    "predicting": check_predicting,
    "types": check_types,
    "bad input": check_bad_input,
    "boundaries": check_boundaries,
    "resuming": check_resuming,
    "state": check_state,
    "foreign states": check_foreign_states,
}
"""The checks of `check_learner` by name."""


# -- agents --------------------------------------------------------------------------------------------------------------------


def check_agent(method: str | type[Agent], *, steps: int = 1_500, score: float = 0.6, **settings: Any) -> None:
    """Raise `AssertionError` unless a registered method keeps the contract of `hvcl.rl.Agent`.

    Args:
        method: its name, or its class.
        steps: in which it learns the tiny task (the right action for each of two observations, in episodes of one step).
        score: the mean reward that it must reach then, of at most 1; an agent that ignores the observation has 0.3.
        settings: for that.
    """
    from hvcl.rl.methods import known_methods as known_agents

    if not isinstance(method, str):
        names = [name for name, found in known_agents().items() if found.agent is method]
        shown = getattr(method, "__name__", repr(method))
        _require(bool(names), f"{shown} is not a registered method: give the name or the class of one (hvcl.rl.methods.register)")
        method = names[0]
    case = AgentCase(method, settings, steps, score)
    for name, check in AGENT_CHECKS.items():
        _run_check(name, check, case)


@dataclass(frozen=True)
class AgentCase:
    """A method with settings for the tiny task."""

    method: str
    settings: dict[str, Any] = field(default_factory=dict)
    steps: int = 1_500
    score: float = 0.6

    def create(self, seed: int = 0) -> Agent:
        """A new agent for two observations and one action."""
        from hvcl.rl import create as create_agent

        return create_agent(self.method, 2, 1, seed, **self.settings)

    def taught(self, steps: int, seed: int = 0) -> Agent:
        """An agent that is so many steps into its first task."""
        agent = self.create(seed)
        agent.on_task_start(0, self.steps)
        play(agent, range(steps))
        return agent


def play(agent: Agent, steps: range) -> list[dict[str, float]]:
    """Let an agent act and learn: a sign is shown, and the nearer the action is to 0.7 times that sign, the better."""
    from hvcl.rl import Transitions

    terms = []
    for step in steps:
        sign = np.float32(np.random.default_rng([0, step]).choice([-1.0, 1.0]))
        shown, ones = np.full((1, 2), sign, np.float32), np.ones((1, 1), np.float32)
        action = agent.act(shown)
        reward = np.array([1 - abs(float(np.clip(action[0, 0], -1, 1)) - 0.7 * sign)], np.float32)
        terms.append(agent.observe(Transitions(shown, action, reward, shown, np.ones(1, np.float32), ones)))
    return terms


def check_agent_learns(case: AgentCase) -> None:
    """The right action for each of two observations is found."""
    actions = case.taught(case.steps).predict(np.array([[1, 1], [-1, -1]], np.float32), 0)[:, 0]
    score = 1 - float(np.abs(np.clip(actions, -1, 1) - [0.7, -0.7]).mean())
    _require(score > case.score, f"{case.method} reaches a mean reward of {score:.2f} in {case.steps} steps, not {case.score}")


def check_agent_seed(case: AgentCase) -> None:
    """The same seed gives the same numbers, whatever the global random states, which are left as they were."""
    found = []
    outside, numpys = torch.get_rng_state(), np.random.get_state()
    try:
        for number in (1, 2):
            torch.manual_seed(number)
            np.random.seed(number)
            before, numpy_before = torch.get_rng_state(), np.random.random()
            np.random.seed(number)
            agent = case.taught(40, seed=5)
            found.append((agent.act(_SHOWN), agent.predict(_SHOWN, 0)))
            _require(torch.equal(torch.get_rng_state(), before), f"{case.method} changes torch's global random state: {RANDOM}")
            _require(np.random.random() == numpy_before, f"{case.method} changes numpy's global random state")
    finally:
        torch.set_rng_state(outside)
        np.random.set_state(numpys)
    agree = all(np.array_equal(a, b) for a, b in zip(*found, strict=True))
    _require(agree, f"{case.method} with the same seed gives other numbers when a global random state is another")


def check_agent_predicting(case: AgentCase) -> None:
    """Predicting changes nothing, gives the same twice, and finite actions of the right shape; so does acting, but for chance."""
    agent = case.taught(10)
    before = copied(agent.state_dict())
    first = agent.predict(_SHOWN, 0)
    _require(np.array_equal(first, agent.predict(_SHOWN, 0)), f"{case.method} predicts something else when it is asked again")
    _require(same(before, agent.state_dict()), f"{case.method} changes its state by predicting")
    for what, actions in (("predict", first), ("act", agent.act(_SHOWN))):
        fits = actions.shape == (2, 1) and bool(np.isfinite(actions).all())
        _require(fits, f"{case.method}.{what} gives no finite actions of shape (2, 1)")


def check_agent_bad_input(case: AgentCase) -> None:
    """Observations that do not fit raise `InputError`, and nothing has changed."""
    agent = case.taught(10)
    before = copied(agent.state_dict())
    for what, bad in {"another shape": _SHOWN[:, :1], "one dimension": _SHOWN[0], "NaN": _SHOWN * np.float32("nan")}.items():
        _refuses(InputError, partial(agent.act, bad), f"{case.method}.act with observations of {what}")
        _refuses(InputError, partial(agent.predict, bad, 0), f"{case.method}.predict with observations of {what}")
        _require(same(before, agent.state_dict()), f"{case.method} has changed after observations of {what}")


def check_agent_boundaries(case: AgentCase) -> None:
    """A task without a step is no error."""
    agent = case.create()
    for task in range(2):
        agent.on_task_start(task, 10)
        agent.on_task_end()
    agent.on_task_start(2, 10)
    play(agent, range(5))
    _require(bool(np.isfinite(agent.predict(_SHOWN, 2)).all()), f"{case.method} predicts no numbers after a task without steps")


def check_agent_resuming(case: AgentCase) -> None:
    """An agent that was saved at any moment and loaded again goes on bit-identically."""
    from hvcl.rl import load as load_agent

    whole = case.taught(80)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "agent.safetensors"
        for stop in (0, 1, 45):
            first = case.taught(stop)
            first.save(path)
            second = load_agent(path)
            _require(type(second) is type(first), f"{case.method} is loaded as a {type(second).__name__}")
            play(second, range(stop, 80))
            alike = same(whole.state_dict(), second.state_dict())
            alike = alike and np.array_equal(whole.predict(_SHOWN, 0), second.predict(_SHOWN, 0))
            _require(alike, f"{case.method}, saved after {stop} steps and loaded, does not go on as if nothing had happened")


def check_agent_states(case: AgentCase) -> None:
    """A state shares nothing with who gave it; one that does not fit raises `RunError` and changes nothing."""
    giver, agent = case.taught(45), case.taught(5, seed=2)
    own = copied(agent.state_dict())
    agent.load_state_dict(giver.state_dict())
    taken = copied(agent.state_dict())
    _require(same(giver.state_dict(), taken), f"{case.method} does not take over all of a state")
    play(giver, range(45, 50))
    _require(same(agent.state_dict(), taken), f"{case.method} keeps tensors of the state that it was given")
    agent.load_state_dict(own)
    _check_damaged(agent, own, taken, case.method)


_SHOWN = np.array([[1, 1], [-1, -1]], np.float32)

AGENT_CHECKS: dict[str, Callable[[AgentCase], None]] = {
    "learns": check_agent_learns,
    "seed": check_agent_seed,
    "predicting": check_agent_predicting,
    "bad input": check_agent_bad_input,
    "boundaries": check_agent_boundaries,
    "resuming": check_agent_resuming,
    "states": check_agent_states,
}
"""The checks of `check_agent` by name."""
