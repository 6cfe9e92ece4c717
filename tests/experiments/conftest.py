"""Scripts of experiments/, which are no package, as modules."""

import importlib.util
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@pytest.fixture(scope="session")
def load():
    """A function that runs a script of experiments/, by its name, and returns it as a module of its own."""

    def loaded(name):
        spec = importlib.util.spec_from_file_location(f"experiments_{name}", EXPERIMENTS / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return loaded
