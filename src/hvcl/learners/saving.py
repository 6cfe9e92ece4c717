"""Learners as files: saved with the method's name, problem, settings and state, and built again from them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hvcl.core.configuration import configure, field_types, to_json
from hvcl.core.errors import InputError, RunError, UnknownNameError
from hvcl.core.problem import Problem
from hvcl.core.random import float32
from hvcl.core.saved import read_saved, write_saved
from hvcl.learners.base import Learner
from hvcl.learners.registry import known_methods, method


def save(learner: Learner, path: str | Path) -> None:
    """Write a learner of a registered method to one file; see `Learner.save`."""
    names = [name for name, found in known_methods().items() if found.learner is type(learner)]
    if not names:
        raise InputError(f"{type(learner).__name__} is not registered: only learners of registered methods can be built again")
    learner.check_savable()
    description = {"method": names[0], "problem": asdict(learner.problem), "settings": to_json(learner.config)}
    write_saved(Path(path), "learner", description, learner.state_dict())


def load(path: str | Path, *, device: str | None = None) -> Learner:
    """The learner that was saved in a file; it goes on bit-identically.

    The class of the learner is looked up by its method's name: a file can name no code of its own.

    Args:
        path: of the file.
        device: where to compute; None: where the learner did that was saved.

    Raises:
        RunError: the file is missing, damaged, no saved learner, or from a newer version or a method that is not installed.
    """
    path = Path(path)
    saved, state = read_saved(path, "learner")
    try:
        chosen = method(saved["method"])
        settings = dict(saved["settings"])
        if device is not None and "device" in field_types(chosen.config):
            settings["device"] = device
        config, problem = configure(chosen.config, settings), _problem(saved["problem"])
    except UnknownNameError as error:
        raise RunError(f"{path} cannot be loaded ({error}): install what the method came with") from None
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} does not fit this version of hvcl ({error})") from None
    with float32():
        learner = chosen.learner(problem, config, 0)
    learner.load_state_dict(state)
    return learner


def _problem(saved: dict[str, Any]) -> Problem:
    """From JSON, which has lists for tuples."""
    heads = saved["task_outputs"]
    examples, steps = (None if saved[name] is None else tuple(saved[name]) for name in ("task_examples", "task_steps"))
    return Problem(
        tuple(saved["input_shape"]), saved["outputs"], None if heads is None else tuple(map(tuple, heads)), examples, steps
    )
