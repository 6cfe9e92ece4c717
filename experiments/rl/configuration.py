"""Settings of ewc, ucl and hvcl on the robots: Hopper, then the double pendulum, 40,000 steps each, seed 0.

These two are the last tasks of the chain, the other way round: both are learned in few steps, so that there is something to
forget. The score is the mean performance over both tasks at the end: what is forgotten counts as much as what is not learned.
Everything but the method's own settings is as in chain.py. Seed 0 is not among the reported ones.
"""

from pathlib import Path

from experiments.topic import Reinforcement, Topic

AGENT = {"updates_per_step": 0.5, "warmup": 1_000, "capacity": 60_000}
"""Settings of every agent, here and on the chain."""

TOPIC = Topic(
    folder=Path(__file__).parent,
    protocol=Reinforcement(
        tasks=("Hopper", "InvertedDoublePendulum"),
        training={"steps": 40_000, "evaluate_every": 40_000, "episodes": 5, "final_episodes": 10},
        agent=AGENT,
    ),
    benchmarks=("bullet",),
    methods=("naive", "ewc", "ucl", "hvcl"),
    score="performance",
)
