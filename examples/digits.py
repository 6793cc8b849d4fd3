"""The demo: train, sweep, plot, save and restore, on scikit-learn's digits.

    python examples/digits.py [--out demo_output] [--steps 1000] [--seed 0]

An Equinox MLP learns to classify 8x8 images of digits, with AdamW and a warm-up cosine schedule. The optimizer is a
pytree, so `modulax.sweeps` trains with 32 learning rates and three seeds at once, in one program, and one file holds a
checkpoint of the whole run.
"""

import argparse
import time
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import modulax as mx
from modulax import sweeps

mpl.use("Agg")
import matplotlib.pyplot as plt

PEAK = 2e-3
BATCH_SIZE = 64
Images = Float[Array, "n 64"]
Labels = Int[Array, " n"]


class Data(NamedTuple):
    train_images: Images
    train_labels: Labels
    valid_images: Images
    valid_labels: Labels
    test_images: Images
    test_labels: Labels


class History(NamedTuple):
    losses: list[float]  # one per batch
    valid_steps: list[int]
    valid_losses: list[float]


class Run(eqx.Module):
    """The state of a training run, and the contents of a checkpoint."""

    model: eqx.nn.MLP
    optimizer: mx.AdamW
    state: mx.states.OptimizerState


def make_model(key: PRNGKeyArray) -> eqx.nn.MLP:
    return eqx.nn.MLP(in_size=64, out_size=10, width_size=128, depth=2, key=key)


def make_schedule(peak: float | Array, steps: int) -> mx.schedules.WarmupCosineDecay:
    return mx.schedules.WarmupCosineDecay(0.0, peak, warmup_steps=steps // 10, decay_steps=steps)


def make_optimizer(peak: float | Array, steps: int) -> mx.AdamW:
    return mx.AdamW(make_schedule(peak, steps), weight_decay=1e-2, mask=mx.decays)


def start(key: PRNGKeyArray, optimizer: mx.AdamW) -> Run:
    model = make_model(key)
    return Run(model, optimizer, optimizer.init(model))


def cross_entropy(model: eqx.nn.MLP, images: Images, labels: Labels) -> Float[Array, ""]:
    return jnp.mean(mx.losses.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels))


def accuracy(model: eqx.nn.MLP, data: Data) -> float:
    predicted = jnp.argmax(jax.vmap(model)(data.test_images), axis=1)
    return float(jnp.mean(predicted == data.test_labels))


def step(run: Run, data: Data, key: PRNGKeyArray) -> tuple[Run, Float[Array, ""]]:
    """One step on a random batch, which depends only on the seed and on the step count."""
    rows = jax.random.randint(jax.random.fold_in(key, run.state.step), (BATCH_SIZE,), 0, len(data.train_images))
    images, labels = data.train_images[rows], data.train_labels[rows]
    loss, grads = eqx.filter_value_and_grad(cross_entropy)(run.model, images, labels)
    model, state = run.optimizer.step(grads, run.state, run.model)
    return Run(model, run.optimizer, state), loss


def train(run: Run, data: Data, key: PRNGKeyArray, steps: int) -> tuple[Run, History]:
    """A training loop with a progress bar, which prints the current hyperparameters."""
    compiled_step, validate = eqx.filter_jit(step), eqx.filter_jit(cross_entropy)
    losses, valid_steps, valid_losses = [], [], []
    bar = tqdm(range(steps), unit="step", ncols=90)
    for i in bar:
        if i % max(steps // 8, 1) == 0:
            hyperparameters = run.optimizer.hyperparameters(run.state)
            current = "  ".join(f"{name}={float(value):.3g}" for name, value in hyperparameters.items())
            tqdm.write(f"step {i:4d}  {current}")
        run, loss = compiled_step(run, data, key)
        losses.append(loss)
        if (i + 1) % 25 == 0:
            valid_steps.append(i + 1)
            valid_losses.append(float(validate(run.model, data.valid_images, data.valid_labels)))
            bar.set_postfix(loss=f"{loss:.3f}", validation=f"{valid_losses[-1]:.3f}", refresh=False)
    return run, History([float(loss) for loss in losses], valid_steps, valid_losses)


def run_sweep(peaks: Float[np.ndarray, " k"], data: Data, key: PRNGKeyArray, steps: int) -> sweeps.Results:
    """Complete runs with different peak learning rates and seeds in one program: training and validation losses."""

    def train(optimizer: mx.AdamW, key: PRNGKeyArray) -> dict[str, Array]:
        model = make_model(key)
        arrays, rest = eqx.partition(Run(model, optimizer, optimizer.init(model)), eqx.is_array)

        def body(arrays: PyTree, _: None) -> tuple[PyTree, Array]:
            run, loss = step(eqx.combine(arrays, rest), data, key)
            return eqx.filter(run, eqx.is_array), loss

        arrays, losses = jax.lax.scan(body, arrays, length=steps)
        model = eqx.combine(arrays, rest).model
        valid_loss = cross_entropy(model, data.valid_images, data.valid_labels)
        return {"training": losses[-50:].mean(), "validation": valid_loss}

    sweep = sweeps.grid(make_optimizer(PEAK, steps), peak_value=peaks)
    return sweeps.run(sweep, train, seeds=3, key=key)


def check_restore(key: PRNGKeyArray, data: Data, steps: int, path: Path) -> None:
    """Save a run halfway, restore it, and compare how both continue."""
    compiled_step = eqx.filter_jit(step)

    def advance(run: Run) -> tuple[Run, list[Array]]:
        losses = []
        for _ in range(steps // 2):
            run, loss = compiled_step(run, data, key)
            losses.append(loss)
        return run, losses

    run, _ = advance(start(key, make_optimizer(PEAK, steps)))
    eqx.tree_serialise_leaves(path, run)
    # The template defines only the structure; all values come from the file. With its peak of zero, it would not train.
    restored = eqx.tree_deserialise_leaves(path, start(jax.random.key(1), make_optimizer(0.0, steps)))

    run, losses = advance(run)
    restored, restored_losses = advance(restored)
    assert losses == restored_losses
    assert eqx.tree_equal(eqx.filter(run, eqx.is_array), eqx.filter(restored, eqx.is_array))
    print(f"Saved after {steps // 2} steps to {path}, restored and continued: {steps // 2} steps later,")
    print("the losses, the model, the optimizer and its state are bitwise equal.")


def plot(
    path: Path,
    schedule: mx.schedules.AbstractSchedule,
    history: History,
    peaks: Float[np.ndarray, " k"],
    results: sweeps.Results,
) -> None:
    ink, accent, soft = "#22313f", "#c0392b", "#b8c4ce"
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.titlepad": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "text.color": ink,
        "legend.frameon": False,
    }
    losses, valid_steps, valid_losses = history
    with plt.rc_context(style):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3.1), layout="constrained")
        steps = np.arange(len(losses))

        left.set_title("Schedule")
        left.plot(steps, 1e3 * schedule(steps), color=ink)
        left.set(xlabel="step", ylabel="learning rate / $10^{-3}$", xlim=(0, len(losses)), ylim=(0, None))

        middle.set_title("Losses")
        middle.semilogy(steps, losses, color=soft, linewidth=0.6, label="training, one batch")
        middle.semilogy(valid_steps, valid_losses, color=ink, label="validation")
        middle.set(xlabel="step", xlim=(0, len(losses)))
        middle.legend()

        valid_loss = results.metrics["validation"]
        train_mean, valid_mean = results.scores("training"), results.scores("validation")
        _, best = results.best("validation")
        right.set_title(f"Sweep: {valid_loss.size} runs, one program")
        right.loglog(peaks, train_mean, "o-", color=soft, markersize=3, linewidth=1, label="training")
        low, high = np.nanmin(valid_loss, axis=1), np.nanmax(valid_loss, axis=1)
        right.fill_between(peaks, low, high, color=ink, alpha=0.15, linewidth=0)
        right.loglog(peaks, valid_mean, "o-", color=ink, markersize=3, linewidth=1, label="validation, 3 seeds")
        peak, loss = best["peak_value"], best["validation"]
        right.loglog(peak, loss, "o", color=accent, markersize=6, label=f"best, {peak:.1e}")
        right.set(xlabel="peak learning rate", ylabel="final loss")
        right.legend(loc="lower left")

        figure.savefig(path, dpi=160)
        plt.close(figure)


def load_data(seed: int) -> Data:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    images, test_images, labels, test_labels = train_test_split(
        images, labels, test_size=300, random_state=seed, stratify=labels
    )
    train_images, valid_images, train_labels, valid_labels = train_test_split(
        images, labels, test_size=200, random_state=seed, stratify=labels
    )
    splits = (train_images, train_labels, valid_images, valid_labels, test_images, test_labels)
    return Data(*map(jnp.asarray, splits))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, sweep, plot, save and restore on scikit-learn's digits.")
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder for the plot and the checkpoint")
    parser.add_argument("--steps", type=int, default=1000, help="how many steps to train for")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out, steps = arguments.out, arguments.steps
    out.mkdir(parents=True, exist_ok=True)
    data, key = load_data(arguments.seed), jax.random.key(arguments.seed)

    run = start(key, make_optimizer(PEAK, steps))
    print(f"1. Train with\n\n{run.optimizer}\n\nwhich will do this to each parameter:\n")
    print(mx.describe(run.optimizer, run.model), "\n")
    run, history = train(run, data, key, steps)
    print(f"Test accuracy: {accuracy(run.model, data):.1%}")
    assert accuracy(run.model, data) > 0.95, "the demo should reach 95 % on the test set"

    print("\n2. Sweep 32 peak learning rates with 3 seeds as one program\n")
    began = time.perf_counter()
    peaks, sweep_steps = np.logspace(-5, -0.5, 32), steps // 4
    results = run_sweep(peaks, data, key, sweep_steps)
    optimizer, best = results.best("validation")
    print(
        f"{results.diverged.size} runs of {sweep_steps} steps in {time.perf_counter() - began:.1f} s with compilation."
    )
    print(f"The best peak is {best['peak_value']:.1e}, with a mean validation loss of {best['validation']:.3f}.")
    assert isinstance(optimizer, mx.AdamW)
    winner, _ = train(start(key, optimizer), data, key, sweep_steps)
    print(f"Test accuracy of the winner, after {sweep_steps} steps: {accuracy(winner.model, data):.1%}")

    print("\n3. Plot\n")
    plot(out / "digits.png", make_schedule(PEAK, steps), history, peaks, results)
    print(f"Written to {out / 'digits.png'}.")

    print("\n4. Save and restore\n")
    check_restore(key, data, steps, out / "digits.eqx")


if __name__ == "__main__":
    main()
