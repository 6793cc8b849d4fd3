"""The demo: train, sweep, plot, save and restore, on scikit-learn's digits.

    python examples/digits.py [--out demo_output] [--steps 1000] [--seed 0]

An Equinox MLP learns 8x8 images of digits with AdamW and a warm-up cosine schedule. The optimizer is a pytree, so the
same training step also runs 32 of them at once, and a checkpoint of the whole run is one file.
"""

import argparse
import time
from pathlib import Path

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

mpl.use("Agg")
import matplotlib.pyplot as plt

PEAK = 2e-3
BATCH_SIZE = 64
Images = Float[Array, "n 64"]
Labels = Int[Array, " n"]


class Run(eqx.Module):
    """Everything that training changes, and everything that a checkpoint must hold."""

    model: eqx.nn.MLP
    optimizer: mx.AdamW
    state: mx.OptimizerState


def make_model(key: PRNGKeyArray) -> eqx.nn.MLP:
    return eqx.nn.MLP(in_size=64, out_size=10, width_size=128, depth=2, key=key)


def make_optimizer(peak: float | Array, steps: int) -> mx.AdamW:
    return mx.AdamW(
        learning_rate=mx.schedules.WarmupCosineDecay(0.0, peak, warmup_steps=steps // 10, decay_steps=steps),
        weight_decay=1e-2,
        mask=mx.by_path({"*.bias": False, "*": True}),
    )


def start(key: PRNGKeyArray, peak: float | Array, steps: int) -> Run:
    model, optimizer = make_model(key), make_optimizer(peak, steps)
    return Run(model, optimizer, optimizer.init(model))


def cross_entropy(model: eqx.nn.MLP, images: Images, labels: Labels) -> Float[Array, ""]:
    log_probabilities = jax.nn.log_softmax(jax.vmap(model)(images))
    return -jnp.mean(jnp.take_along_axis(log_probabilities, labels[:, None], axis=1))


def accuracy(model: eqx.nn.MLP, images: Images, labels: Labels) -> Float[Array, ""]:
    return jnp.mean(jnp.argmax(jax.vmap(model)(images), axis=1) == labels)


def step(run: Run, images: Images, labels: Labels, key: PRNGKeyArray) -> tuple[Run, Float[Array, ""]]:
    """One step on a random batch, which depends on the seed and on the number of steps done, on nothing else."""
    rows = jax.random.randint(jax.random.fold_in(key, run.state.step), (BATCH_SIZE,), 0, len(images))
    loss, grads = eqx.filter_value_and_grad(cross_entropy)(run.model, images[rows], labels[rows])
    model, state = run.optimizer.step(grads, run.state, run.model)
    return Run(model, run.optimizer, state), loss


def train(run: Run, data: tuple, key: PRNGKeyArray, steps: int) -> tuple[Run, list[float]]:
    """The usual loop, with a progress bar and the hyperparameters in force."""
    train_images, train_labels, valid_images, valid_labels = data
    compiled_step, compiled_accuracy = eqx.filter_jit(step), eqx.filter_jit(accuracy)
    losses = []
    bar = tqdm(range(steps), unit="step", ncols=80)
    for i in bar:
        if i % (steps // 8) == 0:
            numbers = run.optimizer.hyperparameters(run.state)
            in_force = "  ".join(f"{name}={float(value):.3g}" for name, value in numbers.items())
            tqdm.write(f"step {i:4d}  {in_force}")
        run, loss = compiled_step(run, train_images, train_labels, key)
        losses.append(loss)
        if i % 50 == 49:
            valid = compiled_accuracy(run.model, valid_images, valid_labels)
            bar.set_postfix(loss=f"{loss:.3f}", valid=f"{valid:.1%}")
    return run, [float(loss) for loss in losses]


@eqx.filter_jit
def sweep(peaks: Float[Array, " k"], data: tuple, key: PRNGKeyArray, steps: int) -> tuple[Array, Array]:
    """Whole runs, one for each peak learning rate, as one program: a `vmap` over optimizers."""
    train_images, train_labels, valid_images, valid_labels = data

    def one(optimizer: mx.AdamW) -> tuple[Array, Array]:
        model = make_model(key)
        arrays, rest = eqx.partition(Run(model, optimizer, optimizer.init(model)), eqx.is_array)

        def body(arrays: PyTree, _: None) -> tuple[PyTree, Array]:
            run, loss = step(eqx.combine(arrays, rest), train_images, train_labels, key)
            return eqx.filter(run, eqx.is_array), loss

        arrays, losses = jax.lax.scan(body, arrays, length=steps)
        model = eqx.combine(arrays, rest).model
        return losses[-50:].mean(), cross_entropy(model, valid_images, valid_labels)

    optimizers = eqx.filter_vmap(lambda peak: make_optimizer(peak, steps))(peaks)
    return eqx.filter_vmap(one)(optimizers)


def check_restore(key: PRNGKeyArray, data: tuple, steps: int, path: Path) -> None:
    """Saves a run half-way, restores it, and compares how both continue."""
    compiled_step = eqx.filter_jit(step)

    def advance(run: Run, n: int) -> tuple[Run, list[Array]]:
        losses = []
        for _ in range(n):
            run, loss = compiled_step(run, *data[:2], key)
            losses.append(loss)
        return run, losses

    run, _ = advance(start(key, PEAK, steps), steps // 4)
    eqx.tree_serialise_leaves(path, run)
    # The shapes come from a new run, every number from the file; this one would not even train.
    restored = eqx.tree_deserialise_leaves(path, start(jax.random.key(1), 0.0, steps))

    run, losses = advance(run, steps // 4)
    restored, restored_losses = advance(restored, steps // 4)
    assert losses == restored_losses
    assert eqx.tree_equal(eqx.filter(run, eqx.is_array), eqx.filter(restored, eqx.is_array))
    print(f"Saved at step {steps // 4}, restored, and {steps // 4} steps later equal bit for bit ({path}).")


def plot(path: Path, optimizer: mx.AdamW, losses: list[float], peaks: Array, results: tuple[Array, Array]) -> None:
    ink, accent, soft = "#22313f", "#c0392b", "#b8c4ce"
    style = {
        "font.size": 9,
        "axes.titlesize": 10,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "text.color": ink,
        "legend.frameon": False,
    }
    with plt.rc_context(style):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10.5, 3.1), layout="constrained")
        steps = np.arange(len(losses))

        left.set_title("Learning rate")
        left.plot(steps, jax.vmap(optimizer.learning_rate)(steps), color=ink)
        left.set(xlabel="step", xlim=(0, len(losses)), ylim=(0, None))
        left.ticklabel_format(axis="y", scilimits=(0, 0))

        middle.set_title("Training loss")
        window = max(len(losses) // 40, 1)
        mean = np.convolve(losses, np.ones(window) / window, mode="valid")
        middle.semilogy(steps, losses, color=soft, linewidth=0.6, label="one batch")
        middle.semilogy(steps[window - 1 :], mean, color=ink, label=f"mean of {window}")
        middle.set(xlabel="step", xlim=(0, len(losses)))
        middle.legend()

        train_loss, valid_loss = results
        best = int(jnp.argmin(valid_loss))
        right.set_title(f"{len(peaks)} peak learning rates, one program")
        right.loglog(peaks, train_loss, "o-", color=soft, markersize=3, linewidth=1, label="training")
        right.loglog(peaks, valid_loss, "o-", color=ink, markersize=3, linewidth=1, label="validation")
        right.loglog(peaks[best], valid_loss[best], "o", color=accent, markersize=6, label=f"best: {peaks[best]:.1e}")
        right.set(xlabel="peak learning rate", ylabel="final loss")
        right.legend()

        figure.savefig(path, dpi=160)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, sweep, plot, save and restore on scikit-learn's digits.")
    parser.add_argument("--out", type=Path, default=Path("demo_output"), help="folder for the plot and the checkpoint")
    parser.add_argument("--steps", type=int, default=1000, help="how many steps to train for")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out, steps, seed = arguments.out, arguments.steps, arguments.seed
    out.mkdir(parents=True, exist_ok=True)

    images, labels = load_digits(return_X_y=True)
    images, test_images, labels, test_labels = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=300, random_state=seed, stratify=labels
    )
    splits = train_test_split(images, labels, test_size=200, random_state=seed, stratify=labels)
    train_images, valid_images, train_labels, valid_labels = map(jnp.asarray, splits)
    data = (train_images, train_labels, valid_images, valid_labels)
    key = jax.random.key(seed)

    print("\n1. Train with")
    run = start(key, PEAK, steps)
    print(run.optimizer)
    print("   What it will do to each parameter:\n")
    print(mx.describe(run.optimizer, run.model), "\n")
    run, losses = train(run, data, key, steps)
    test = accuracy(run.model, jnp.asarray(test_images), jnp.asarray(test_labels))
    print(f"Test accuracy: {test:.1%}")
    assert test > 0.95, "the demo should reach 95 % on the test set"

    print("\n2. Sweep 32 peak learning rates as one program")
    began = time.perf_counter()
    peaks = jnp.logspace(-5, -0.5, 32)
    results = jax.block_until_ready(sweep(peaks, data, key, steps // 2))
    best = int(jnp.argmin(results[1]))
    print(f"{len(peaks)} runs of {steps // 2} steps in {time.perf_counter() - began:.1f} s, compilation included.")
    print(f"The best peak is {peaks[best]:.2e}, with a validation loss of {results[1][best]:.3f}.")

    print("\n3. Plot")
    plot(out / "digits.png", run.optimizer, losses, peaks, results)
    print(f"Written to {out / 'digits.png'}.")

    print("\n4. Save and restore")
    check_restore(key, data, steps, out / "digits.eqx")


if __name__ == "__main__":
    main()
