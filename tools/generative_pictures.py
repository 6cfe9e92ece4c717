"""The picture of docs/generative of what the VAE makes of photographs: the first task of split-cifar10.

    .venv/bin/python -m tools.generative_pictures                # writes docs/generative/split-cifar10-first-task.png
    .venv/bin/python -m tools.generative_pictures --epochs 1 --output /tmp/first.png

Four VAEs of `hvcl-replay`, with the benchmark's settings but for what VARIANTS names (the last: for nothing), seed 1, trained
without the classifier beside them. First row: originals, of the test set. Then, for each VAE, their reconstructions and samples.
"""

import argparse
import time
from pathlib import Path

import torch

from hvcl.core.pictures import png, strip
from hvcl.runs import RunConfig
from hvcl.streams.events import TaskEnd
from tools.marks import ROOT

OUTPUT = ROOT / "docs" / "generative" / "split-cifar10-first-task.png"
SHOWN, GAP = 16, 4
FOG = {
    "vae_channels": None,
    "vae_hidden": None,
    "estimator": "flipout",
    "vae_experts": 2,
    "latent_experts": 3,
    "vae_learning_rate": 0.001,
}
VARIANTS = (FOG | {"likelihood": "bce"}, FOG | {"likelihood": "logistic"}, {"vae_experts": 2}, {})


def rows(config, originals):
    """Reconstructions and samples of a VAE that has learned the first task."""
    stream = config.make_stream(1)
    learner = config.make_learner(stream, 1)
    begun = time.process_time()
    for step, event in enumerate(stream.events()):
        if isinstance(event, TaskEnd):
            break
        with learner.random.active():
            terms = learner.train_generator(event.x, event.y)
        if step % 40 == 0:
            print(f"  step {step}: ELBO {terms['elbo']:.0f}, {time.process_time() - begun:.0f} s", flush=True)
    print(f"  {step} steps: ELBO {terms['elbo']:.0f}, {time.process_time() - begun:.0f} s", flush=True)
    generated, _ = learner.generate(SHOWN, seed=1)
    return [strip(learner.reconstruct(originals)), strip(generated.x)]


def main():
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--benchmark", default="split-cifar10")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    torch.set_num_threads(1)
    configs = [RunConfig.make(options.benchmark, "hvcl-replay", (1,), {"epochs": options.epochs}, v) for v in VARIANTS]
    originals = next(configs[0].make_stream(1).tests[0].batches(SHOWN))[0]
    picture = [strip(originals)]
    for config, variant in zip(configs, VARIANTS, strict=True):
        print(*(f"{name}={value}" for name, value in variant.items()), flush=True)
        found = rows(config, originals)
        picture += [torch.ones_like(found[0])[:, :GAP], *found]
    options.output.write_bytes(png(torch.cat(picture, 1)))
    print(options.output)


if __name__ == "__main__":
    main()
