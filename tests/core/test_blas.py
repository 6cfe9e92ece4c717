"""scipy's BLAS has as many threads as torch while the house computes with it."""

import threading

import pytest
import scipy.linalg.lapack
import torch
from threadpoolctl import ThreadpoolController

from hvcl.core.blas import SMALL, threads_of_torch
from hvcl.posteriors import evidence


def threads():
    """Threads of every BLAS that is loaded."""
    return {library.num_threads for library in ThreadpoolController().select(user_api="blas").lib_controllers}


@pytest.fixture
def several():
    """BLAS with two threads, torch with one."""
    assert scipy.linalg.lapack
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        if threads() != {2}:
            pytest.skip("this BLAS cannot have two threads")
        yield
    torch.set_num_threads(before)


def test_large_calls_have_the_threads_of_torch_and_leave_what_was(several):
    with threads_of_torch(SMALL + 1):
        assert threads() == {1}
    assert threads() == {2}


def test_small_calls_change_nothing(several):
    with threads_of_torch(SMALL):
        assert threads() == {2}


def test_an_error_puts_them_back(several):
    with pytest.raises(ZeroDivisionError), threads_of_torch(2 * SMALL):
        raise ZeroDivisionError
    assert threads() == {2}


def test_threads_that_overlap_leave_what_was(several):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with threads_of_torch(2 * SMALL):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with threads_of_torch(2 * SMALL):
        thread.start()
        assert inside.wait(10)
    leave.set()
    thread.join()
    assert threads() == {2}


def test_a_factorisation_has_the_threads_of_torch(several, monkeypatch):
    found = []
    spotrf = scipy.linalg.lapack.spotrf
    monkeypatch.setattr(scipy.linalg.lapack, "spotrf", lambda *a, **k: (found.append(threads()), spotrf(*a, **k))[1])
    evidence.factorise([torch.eye(200)], 1.0)
    assert found == [{1}]
