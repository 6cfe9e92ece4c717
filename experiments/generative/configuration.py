"""Settings of the learners that replay what they generate: Domain-IL, boundaries, no stored examples.

The score is the average accuracy over tasks after the last one, on a tenth of the training data that was held out. Trials are
chosen one by one and recorded with all of their settings, whatever the defaults were on the day; the benchmark's defaults are
checked against the best of them.
"""

from pathlib import Path

from experiments.topic import Supervised, Topic

TOPIC = Topic(
    folder=Path(__file__).parent,
    protocol=Supervised(stream={"validation": 0.1}, all_settings=True),
    benchmarks=("split-digits", "split-mnist", "permuted-mnist", "split-cifar10", "split-cifar100"),
    methods=("dgr", "dgr-distill", "rtf", "bir", "curl", "hvcl-replay", "hvcl"),
    # half of a trial's standard error: what is better by less is not better
    margin=0.001,
)
