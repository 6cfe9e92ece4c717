"""Streams without a change, and what was recorded of them."""

import torch

from experiments.records import read_records
from experiments.streams import stationary
from hvcl.gates import GenerativeGate


def test_a_hundred_recorded_streams_have_at_most_one_expert_too_many():
    found = read_records(stationary.OUTPUT)
    assert [record["seed"] for record in found] == list(range(len(found)))
    assert len(found) >= 100
    assert sum(record["experts"] > 1 for record in found[:100]) <= 1


def test_a_stream_is_stationary_and_the_gate_would_notice_if_it_were_not():
    z, y, facts = stationary.stream(3)
    assert stationary.measure(3) == {"seed": 3, "experts": 1} | facts
    gate = GenerativeGate(z.shape[1], covariance=facts["covariance"])
    moved = torch.cat([z[:5000], z[5000:] + 3 * z.std(0)])
    for some, labels in zip(moved.split(facts["batch"]), y.split(facts["batch"]), strict=True):
        gate.observe(some, labels)
    assert gate.experts > 1
