import pytest

pytest.register_assert_rewrite("tests.layers.contract", "tests.layers.reference")
