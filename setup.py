"""Compiles the C sources into the wheel, one library for each set of instructions; everything else is in pyproject.toml.

Without a C compiler, and in editable installs, there are none: then the sources are compiled at first use (`hvcl.ops.library`).
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

OPS = Path(__file__).parent / "src" / "hvcl" / "ops"


def load_build() -> ModuleType:
    """hvcl/ops/build.py, which needs nothing but the standard library. The package itself needs torch, which is not here."""
    spec = importlib.util.spec_from_file_location("hvcl_ops_build", OPS / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = load_build()


def instruction_sets() -> list[str]:
    """The sets of instructions of this kind of processor that libraries are made for."""
    if sys.platform != "linux":
        return []
    return [name for name in build.INSTRUCTIONS if name == "baseline" or platform.machine().lower() in ("x86_64", "amd64")]


class BuildWithLibraries(build_py):
    """Copies the package, and compiles libraries beside it."""

    def run(self) -> None:
        """As ever, and then the compiler; a wheel without libraries is a wheel too."""
        super().run()
        if self.editable_mode:
            return
        compiler, wanted = build.find_compiler(), instruction_sets()
        if compiler is None or not wanted:
            print("hvcl: no C compiler (or not Linux): the wheel has no compiled libraries, they are compiled at first use")
            return
        folder = Path(self.build_lib) / "hvcl" / "ops" / "lib"
        shutil.rmtree(folder, ignore_errors=True)  # what an earlier build of other sources left there
        for instructions in wanted:
            print(f"hvcl: compiling for {instructions}")
            build.compile_library(folder / build.library_name(instructions), instructions, compiler)
        folder.chmod(0o755)


class PlatformWheel(bdist_wheel):
    """Tagged for the platform and for any Python 3: the libraries are called through ctypes and know no Python."""

    def finalize_options(self) -> None:
        """With libraries the wheel is not pure."""
        super().finalize_options()
        self.root_is_pure = build.find_compiler() is None or not instruction_sets()

    def get_tag(self) -> tuple[str, str, str]:
        """py3-none-<platform>."""
        python, abi, system = super().get_tag()
        return ("py3", "none", system) if not self.root_is_pure else (python, abi, system)


class BinaryDistribution(Distribution):
    """Says that there is compiled code, so that installers put it where that belongs."""

    def has_ext_modules(self) -> bool:
        """Whether libraries will be compiled."""
        return build.find_compiler() is not None and bool(instruction_sets())


setup(cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel}, distclass=BinaryDistribution)
