"""The range test, hypergradients and Optuna on the digits MLP of `examples/digits.py`."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optuna
from measure import seconds, table
from sweeps import digits, trained

import modulax
import modulax.sweeps

MAKERS: dict[str, Callable[[Any], Any]] = {
    "AdamW": modulax.AdamW,
    "SGD": modulax.SGD,
    "SGD, momentum 0.9": lambda rate: modulax.SGD(rate, momentum=0.9),
}


class RNN(eqx.Module):
    """A GRU that reads a digit row by row."""

    cell: eqx.nn.GRUCell
    out: eqx.nn.Linear

    def __init__(self, key: Any):
        keys = jax.random.split(key)
        self.cell = eqx.nn.GRUCell(8, 32, key=keys[0])
        self.out = eqx.nn.Linear(32, 10, key=keys[1])

    def __call__(self, image: Any) -> Any:
        hidden, _ = jax.lax.scan(lambda h, row: (self.cell(row, h), None), jnp.zeros(32), image.reshape(8, 8))
        return self.out(hidden)


def make_train(data: Any, steps: int, make_model: Callable[[Any], Any] = digits.make_model) -> Callable[..., Any]:
    """A training that returns the validation loss."""

    def train(optimizer: Any, key: Any) -> Any:
        model = make_model(key)

        def step(model: Any, state: Any, grads: Any) -> Any:
            return optimizer.step(grads, state, model)

        scan = modulax.sweeps.checkpointed_scan
        model, _, _ = trained(model, optimizer.init(model), step, data, key, steps, scan=scan)
        return digits.cross_entropy(model, data.valid_images, data.valid_labels)

    return train


def range_test(quick: bool) -> str:
    """`lr_finder` with 64 rates, 100 steps and 3 seeds: its suggestion, and the loss of a training of 600 steps.

    The loss of the suggestion is divided by the lowest of 31 rates, with the same number of steps: at a constant rate,
    and with the suggestion as the peak of a schedule with warm-up and cosine decay. Medians over 2 seeds.
    """
    best = float("nan")
    n, short, long, rates = (8, 5, 5, np.logspace(-4, 0, 4)) if quick else (64, 100, 600, np.logspace(-5, 1, 31))
    data = digits.load_data(0)
    rows = []
    problems = [("MLP", digits.make_model, name) for name in MAKERS] + [("GRU", RNN, "AdamW"), ("GRU", RNN, "SGD")]
    for model, make_model, name in problems[:1] if quick else problems:
        optimizer = MAKERS[name](1.0)
        start = time.perf_counter()
        found = modulax.sweeps.lr_finder(
            optimizer,
            make_train(data, short, make_model),
            1e-5,
            10.0,
            n,
            seeds=3,
            key=jax.random.key(1),
            progress=False,
        )
        spent = time.perf_counter() - start
        suggestion = float("nan") if found.suggestion is None else found.suggestion
        schedule = modulax.schedules.WarmupCosineDecay(0.0, 1.0, warmup_steps=long // 20, decay_steps=long)
        ratios = []
        for begun, field in ((optimizer, "learning_rate"), (MAKERS[name](schedule), "learning_rate.peak_value")):
            results = modulax.sweeps.run(
                modulax.sweeps.grid(begun, **{field: [*rates, suggestion]}),
                make_train(data, long, make_model),
                seeds=2,
                key=jax.random.key(2),
                progress=False,
            )
            scores = results.scores(reduce="median")
            ratios.append(scores[-1] / scores[:-1].min())
            if field == "learning_rate":
                best = rates[scores[:-1].argmin()]
        rows.append(
            [model, name, f"{suggestion:.2g}", f"{best:.2g}", f"{ratios[0]:.2f}", f"{ratios[1]:.2f}", seconds(spent)]
        )
    head = ["model", "optimizer", "suggestion", "best constant rate", "loss, constant", "loss, as a peak", "time"]
    return table(head, rows, labels=2)


def hypergradients(quick: bool) -> str:
    """50 outer steps from a learning rate 100 times too small, against the best of 32 rates.

    The loss is that on the validation data after 100 steps; the second column is the number of seeds over which it is
    averaged. The steps are those of Lion, with a cosine decay: hypergradients differ by orders of magnitude. The best
    rate of a constant schedule is often next to those that diverge, where the loss is a rough function of the rate and
    the last step is not the best one.
    """
    outer_steps, steps, n = (2, 2, 4) if quick else (50, 100, 32)
    rates, rows = np.logspace(-4, 1, n), []
    data = digits.load_data(0)
    train = make_train(data, steps)
    cases = [("AdamW", 1), ("AdamW", 4), ("SGD", 4), ("SGD, momentum 0.9", 4)]
    for name, seeds in cases[:1] if quick else cases:

        def mean_loss(optimizer: Any, keys: Any) -> Any:
            return jnp.mean(jax.vmap(lambda key: train(optimizer, key))(keys))

        swept = modulax.sweeps.grid(MAKERS[name](1.0), learning_rate=rates)
        results = modulax.sweeps.run(swept, train, seeds=seeds, key=jax.random.key(0), progress=False)
        best, row = results.best()
        start = time.perf_counter()
        begun = best.replace(learning_rate=row["learning_rate"] / 100)
        loss_and_grad = modulax.sweeps.hypergradient(mean_loss, begun, "learning_rate")
        outer = modulax.Lion(modulax.schedules.CosineDecay(0.3, outer_steps), b1=0.5, b2=0.5)
        values = loss_and_grad.start
        state = outer.init(values)
        visited = []
        for _ in range(outer_steps):
            loss, grads = loss_and_grad(values, results.keys)
            visited.append((float(loss), float(loss_and_grad.optimizer(values).hyperparameters()["learning_rate"])))
            values, state = outer.step(grads, state, values)
        loss = float(loss_and_grad(values, results.keys)[0])
        spent = time.perf_counter() - start
        lowest, rate = min(visited)
        rows.append(
            [name, str(seeds), f"{row['learning_rate']:.2g}", f"{row['metric']:.4f}", f"{rate:.2g}", f"{lowest:.4f}",
             f"{lowest / row['metric']:.2f}", f"{loss / row['metric']:.2f}", seconds(spent)]
        )  # fmt: skip
    head = [
        "optimizer",
        "seeds",
        "best of the grid",
        "loss",
        "best learned",
        "loss",
        "ratio",
        "ratio at the end",
        "time",
    ]
    return table(head, rows, labels=2)


def with_optuna(quick: bool) -> str:
    """64 trials of AdamW, 300 steps each: Optuna's TPE in batches of 16, and one trial at a time.

    One at a time, the program is compiled for each trial, as for an objective function with `jax.jit` inside, or once,
    with the hyperparameters as arguments.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trials, batch, steps = (4, 2, 2) if quick else (64, 16, 300)
    data = digits.load_data(0)
    train, key = make_train(data, steps), jax.random.key(0)
    spaces: dict[str, Any] = {
        "learning_rate": modulax.sweeps.LogUniform(1e-5, 1e-1),
        "weight_decay": modulax.sweeps.LogUniform(1e-4, 1.0),
    }

    def study() -> Any:
        return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, constant_liar=True))

    compiled_once = jax.jit(train)

    def alone(compiled: Callable[[], Any]) -> float:
        def objective(trial: Any) -> float:
            rate = trial.suggest_float("learning_rate", 1e-5, 1e-1, log=True)
            decay = trial.suggest_float("weight_decay", 1e-4, 1.0, log=True)
            return float(compiled()(modulax.AdamW(rate, weight_decay=decay), key))

        sequential = study()
        sequential.optimize(objective, n_trials=trials)
        return sequential.best_value

    def in_batches() -> float:
        batched = study()
        modulax.sweeps.optuna(
            batched, modulax.AdamW(1e-3), train, trials=trials, batch=batch, key=key, progress=False, **spaces
        )
        return batched.best_value

    ways = {
        f"`sweeps.optuna`, batches of {batch}": in_batches,
        "one at a time, compiled once": lambda: alone(lambda: compiled_once),
        "one at a time, compiled for each": lambda: alone(lambda: jax.jit(lambda o, key: train(o, key))),
    }
    rows, first = [], 0.0
    for name, search in ways.items():
        start = time.perf_counter()
        loss = search()
        spent = time.perf_counter() - start
        first = first or spent
        rows.append([name, f"{loss:.4f}", seconds(spent), f"{spent / first:.1f}"])
    return table([f"{trials} trials", "best loss", "time", "ratio"], rows)
