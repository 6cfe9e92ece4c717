"""What once crashed the process: states, types and sizes that compiled code trusted. Each runs in a process of its own."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from hvcl.core.errors import InputError
from hvcl.core.problem import Problem
from hvcl.layers import MoVEConv1d, MoVEConv2d, MoVELinear
from hvcl.learners import create
from hvcl.ops.build import find_compiler
from hvcl.optim import SmallAdam, VariationalAdam, load_optimizer_state
from tests.processes import run_python


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own: a crash ends that one."""
    return run_python("-c", textwrap.dedent(code), **environment)


def stepped(network: nn.Module, size: int, **options: object) -> torch.optim.Optimizer:
    optimizer = VariationalAdam(network, **options)  # type: ignore[arg-type]
    network(torch.ones(4, size)).sum().backward()
    optimizer.step()
    return optimizer


class TestOptimiserStates:
    @pytest.mark.parametrize("sigma", ["weight", "unit"])
    def test_the_state_of_a_smaller_network_is_refused_and_nothing_changes(self, sigma):
        small, large = MoVELinear(8, 4, sigma=sigma), MoVELinear(64, 32, sigma=sigma)
        theirs, ours = stepped(small, 8), stepped(large, 64)
        before = {name: value.clone() for name, value in large.state_dict().items()}
        moments = {key: value.clone() for key, value in ours.state[large.posterior.mean].items()}
        with pytest.raises(InputError, match="shape"):
            ours.load_state_dict(theirs.state_dict())
        assert all(torch.equal(before[name], value) for name, value in large.state_dict().items())
        assert all(torch.equal(value, ours.state[large.posterior.mean][key]) for key, value in moments.items())
        large(torch.ones(4, 64)).sum().backward()
        ours.step()
        assert large.posterior.mean.isfinite().all()

    @pytest.mark.parametrize("entry", ["exp_avg", "exp_avg_sq", "step", "kl"])
    @pytest.mark.parametrize("change", ["shorter", "longer", "double", "number"])
    def test_every_entry_is_checked(self, entry, change):
        network = MoVELinear(6, 5, experts=3)
        optimizer = stepped(network, 6)
        state = optimizer.state_dict()
        number = next(n for n, p in enumerate(network.parameters()) if p is network.posterior.mean)
        value = state["state"][number][entry]
        state["state"][number] = dict(state["state"][number])
        state["state"][number][entry] = {
            "shorter": value.flatten()[:-1],
            "longer": torch.cat([value, value]),
            "double": value.double(),
            "number": 3.0,
        }[change]
        with pytest.raises(InputError, match=entry):
            optimizer.load_state_dict(state)

    @pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.SGD], ids=["Adam", "SGD"])
    def test_torchs_own_optimisers_are_not_given_foreign_sizes(self, make):
        options = {"lr": 0.1} | ({"fused": True} if make is torch.optim.Adam else {"momentum": 0.9})
        networks = [nn.Linear(3, 2), nn.Linear(300, 200)]
        optimizers = [make(network.parameters(), **options) for network in networks]
        for network, optimizer in zip(networks, optimizers, strict=True):
            network(torch.ones(2, network.in_features)).sum().backward()
            optimizer.step()
        with pytest.raises(InputError, match="shape"):
            load_optimizer_state(optimizers[1], optimizers[0].state_dict())

    @pytest.mark.parametrize(
        ("change", "word"),
        [({"lr": float("nan")}, "lr"), ({"lr": "fast"}, "lr"), ({"betas": [0.9]}, "betas"), ({"params": [0]}, "number")],
    )
    def test_settings_from_a_file_are_of_the_kind_of_ours(self, change, word):
        network = MoVELinear(3, 2)
        optimizer = stepped(network, 3)
        state = optimizer.state_dict()
        state["param_groups"] = [state["param_groups"][0] | change]
        with pytest.raises(InputError, match=word):
            optimizer.load_state_dict(state)

    def test_small_adam_does_not_spread_one_number_over_all(self):
        network = nn.Linear(4, 3)
        optimizer = SmallAdam(list(network.parameters()), 0.1)
        state = optimizer.state_dict()
        with pytest.raises(InputError, match="shape"):
            optimizer.load_state_dict(state | {"first": [torch.zeros(1), *state["first"][1:]]})

    def test_a_shrunken_moment_in_a_run_folder_is_an_error_in_one_line(self, tmp_path: Path):
        """The whole way: a run is stopped, its checkpoint altered (checksum and all), and resumed."""
        done = run(
            f"""
            import pathlib, sys
            from hvcl.runs import RunConfig, RunFolder
            from hvcl.core.errors import InterruptedRun
            from hvcl.runs.seed import run_seed
            from hvcl.core.storage import load_state, save_state

            folder = RunFolder(pathlib.Path({str(tmp_path / "run")!r}))
            config = RunConfig.make("split-digits", "hvcl", (1,), {{"epochs": 1}}, {{"estimator": "flipout"}})
            folder.prepare(config, {{"memory": "none", "task_names": []}}, resume=False, force=False)
            steps = iter(range(5))
            try:
                run_seed(folder, 1, stop=lambda: next(steps, None) is None)
            except InterruptedRun:
                pass
            path = folder.seed(1).checkpoint_path
            state = load_state(path)
            moments = state["learner"]["optimizer"]["state"]
            for entries in moments.values():
                entries["exp_avg"] = entries["exp_avg"].flatten()[:1]
            save_state(path, state)
            """
        )
        assert done.returncode == 0, done.stderr
        arguments = ["run", "split-digits", "--method", "hvcl", "--epochs", "1", "--estimator", "flipout", "--resume"]
        arguments += ["--out", str(tmp_path / "run")]
        resumed = run_python("-m", "hvcl", *arguments)
        assert resumed.returncode == 2
        assert "does not fit" in resumed.stderr
        assert "Traceback" not in resumed.stderr


SMALL = {"exact": {"warmup": 40, "random_features": 50}, "hvcl-growing": {"warmup": 40}}
"""Settings with which methods on features learn from the first 40 examples on."""


class TestTypes:
    @pytest.mark.parametrize("options", [{}, {"estimator": "local", "sigma": "unit"}], ids=["flipout", "local"])
    def test_the_default_type_of_others_does_not_matter(self, options):
        done = run(
            f"""
            import torch
            from torch import nn
            from hvcl.layers import MoVEConv2d, MoVELinear, loss_terms
            from hvcl.optim import VariationalAdam

            def train(default):
                torch.set_default_dtype(torch.float32)
                torch.manual_seed(0)
                options = {options!r}
                network = nn.Sequential(MoVEConv2d(1, 4, 3, **options), nn.Flatten(), MoVELinear(144, 3, **options))
                x = torch.randn(64, 1, 8, 8)
                torch.set_default_dtype(default)
                optimizer = VariationalAdam(network)
                for _ in range(3):
                    loss = network(x).square().mean() + sum(t.evaluate() for t in loss_terms(network))
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                return loss.item()

            expected = train(torch.float32)
            for default in (torch.bfloat16, torch.float16, torch.float64):
                assert train(default) == expected
            """
        )
        assert done.returncode == 0, done.stderr

    @pytest.mark.parametrize("name", ["naive", "hvcl", "exact", "hvcl-growing", "ewc"])
    def test_learners_do_not_depend_on_the_default_type(self, name):
        problem, x = Problem((6,), 3), torch.randn(40, 6)
        y = torch.arange(40) % 3

        def taught() -> torch.Tensor:
            learner = create(name, problem, seed=1, **SMALL.get(name, {}))
            for _ in range(3):
                learner.observe(x, y)
            return learner.predict(x)

        expected = taught()
        torch.set_default_dtype(torch.float64)
        try:
            found = taught()
        finally:
            torch.set_default_dtype(torch.float32)
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)

    @pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.bfloat16])
    @pytest.mark.parametrize("labels", [torch.int32, torch.uint8, torch.bool])
    @pytest.mark.parametrize("name", ["naive", "hvcl", "exact", "er", "vcl"])
    def test_learners_convert_inputs_and_labels(self, name, kind, labels):
        """A batch of another type teaches what the same numbers in float32 and int64 teach."""
        problem, x = Problem((6,), 2), torch.randn(40, 6).to(kind)
        y = (torch.arange(40) % 2).to(labels)
        settings = SMALL.get(name, {})
        one, two = create(name, problem, seed=1, **settings), create(name, problem, seed=1, **settings)
        assert one.observe(x, y) == two.observe(x.float(), y.long())
        assert torch.equal(one.predict(x), two.predict(x.float()))

    def test_training_in_half_precision_is_refused_and_predicting_is_not(self):
        layer = MoVELinear(8, 4).half()
        with pytest.raises(InputError, match="float16"):
            layer(torch.zeros(2, 8, dtype=torch.float16))
        with torch.no_grad():
            assert layer.eval()(torch.ones(2, 8, dtype=torch.float16)).isfinite().all()

    @pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64])
    def test_inputs_of_another_type_are_named(self, kind):
        with pytest.raises(InputError, match=str(kind)):
            MoVELinear(8, 4)(torch.zeros(2, 8, dtype=kind))
        with pytest.raises(InputError, match=str(kind)):
            MoVEConv2d(1, 4, 3)(torch.zeros(2, 1, 8, 8, dtype=kind))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(2, 1, 0, 0), (2, 1, 0, 5), (1, 0, 5)])
def test_images_without_a_place_are_refused(shape, training):
    layer = MoVEConv2d(1, 3, 1, experts=2, padding=1).train(training)
    with pytest.raises(InputError, match="at least one place"):
        layer(torch.zeros(shape))


def test_signals_without_a_place_are_refused():
    with pytest.raises(InputError, match="at least one place"):
        MoVEConv1d(1, 3, 1, experts=2)(torch.zeros(2, 1, 0))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> Path:
    """A cache folder with a library in it, and a compiler in haste."""
    cache = tmp_path_factory.mktemp("cache")
    compiler = cache / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {find_compiler()} "$@" -O0\n')
    compiler.chmod(0o755)
    assert loaded(cache).stdout.strip() == "loaded"
    return cache


def loaded(cache: Path) -> subprocess.CompletedProcess[str]:
    """A program that uses compiled code says whether it loaded it from a cache folder."""
    program = """
    from hvcl.ops import load
    print("loaded" if load() is not None else "none")
    """
    return run(program, XDG_CACHE_HOME=str(cache), HVCL_LIBRARY="", CC=str(cache / "cc"))


class TestLibraries:
    @pytest.fixture
    def library(self, compiled: Path, tmp_path: Path) -> Path:
        """The library of a copy of it, in `tmp_path`."""
        shutil.copytree(compiled, tmp_path, dirs_exist_ok=True)
        (found,) = (tmp_path / "hvcl" / "kernels").glob("*.so")
        return found

    @pytest.mark.parametrize("damage", ["truncated", "zeroed", "empty", "no digest"])
    def test_a_damaged_one_is_compiled_anew(self, tmp_path: Path, library: Path, damage):
        path = library
        content = path.read_bytes()
        digest = path.with_suffix(".sha256")
        match damage:
            case "truncated":
                path.write_bytes(content[: len(content) // 2])
            case "zeroed":
                path.write_bytes(bytes(len(content)))
            case "empty":
                path.write_bytes(b"")
            case "no digest":
                digest.unlink()
        done = loaded(tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "loaded"
        assert len(path.read_bytes()) == len(content)
        assert digest.exists()

    def test_a_folder_that_others_may_write_to_is_not_used(self, tmp_path: Path, library: Path):
        path = library
        path.parent.chmod(0o777)
        path.write_bytes(b"somebody else's")
        done = loaded(tmp_path)
        assert done.stdout.strip() == "loaded"
        assert "other users may write to it" in done.stderr
        assert path.read_bytes() == b"somebody else's"

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
    def test_a_library_of_another_user_is_replaced_and_a_folder_of_his_refused(self, tmp_path: Path, library: Path):
        path = library
        os.chown(path, 12345, 12345)
        assert loaded(tmp_path).stdout.strip() == "loaded"
        assert path.stat().st_uid == 0
        os.chown(path.parent, 12345, 12345)
        done = loaded(tmp_path)
        assert done.stdout.strip() == "loaded"
        assert "uid 12345" in done.stderr

    def test_only_the_owner_may_change_it(self, tmp_path: Path, library: Path):
        path = library
        for place in (path, path.parent):
            assert not place.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
