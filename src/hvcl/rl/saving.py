"""Agents as files: saved with the method's name, sizes, settings and state, and built again from them."""

from __future__ import annotations

from pathlib import Path

from hvcl.core.configuration import configure, to_json
from hvcl.core.errors import InputError, RunError, UnknownNameError
from hvcl.core.saved import read_saved, write_saved
from hvcl.rl.agent import Agent
from hvcl.rl.methods.registry import known_methods, method


def save(agent: Agent, path: str | Path) -> None:
    """Write an agent of a registered method to one file; see `Agent.save`."""
    names = [name for name, found in known_methods().items() if found.agent is type(agent)]
    if not names:
        raise InputError(f"{type(agent).__name__} is not registered: only agents of registered methods can be built again")
    sizes = {"observations": agent.observations, "actions": agent.actions, "seed": agent.seed}
    write_saved(Path(path), "agent", {"method": names[0], **sizes, "settings": to_json(agent.config)}, agent.state_dict())


def load(path: str | Path) -> Agent:
    """The agent that was saved in a file; it goes on bit-identically.

    Raises:
        RunError: the file is missing, damaged, no saved agent, or from a newer version or a method that is not installed.
    """
    path = Path(path)
    saved, state = read_saved(path, "agent")
    try:
        chosen = method(saved["method"])
        config = configure(chosen.config, saved["settings"])
        observations, actions, seed = (int(saved[name]) for name in ("observations", "actions", "seed"))
    except UnknownNameError as error:
        raise RunError(f"{path} cannot be loaded ({error}): install what the method came with") from None
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path} does not fit this version of hvcl ({error})") from None
    agent = chosen.agent(observations, actions, config, seed)
    agent.load_state_dict(state)
    return agent
