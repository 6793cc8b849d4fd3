"""`coordinate_check`: how the activations of a model move at several widths."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from .._plugin.arguments import check_integer
from .._plugin.messages import imported
from ..authoring import AbstractTransform
from ._experiment import checked_key

LossFunction = Callable[[Any], tuple[Array, Mapping[str, Array]]]
Make = Callable[[int, PRNGKeyArray], tuple[AbstractTransform, Any, LossFunction]]


@dataclasses.dataclass(frozen=True, eq=False)
class CoordinateCheck:
    """The sizes of activations and of their changes, at several widths; see `coordinate_check`.

    Attributes:
        widths: the widths, in increasing order.
        sizes: for each activation, the mean of its absolute values: an array with an entry for each width and step,
            the initial one included.
        changes: for each activation, the mean of the absolute values of its change since initialization, in the same
            form.
    """

    widths: np.ndarray
    sizes: dict[str, np.ndarray]
    changes: dict[str, np.ndarray]

    def growth(self, step: int = -1) -> dict[str, float]:
        """Return with which power of the width the change of each activation grows: near 0 in muP.

        Args:
            step: the step at which the changes are compared; by default the last.
        """
        logs = np.log(self.widths)
        return {name: float(np.polyfit(logs, np.log(x[:, step]), 1)[0]) for name, x in self.changes.items()}

    def __repr__(self) -> str:
        powers = ", ".join(f"{name}: {power:+.2f}" for name, power in self.growth().items())
        return f"CoordinateCheck(widths {', '.join(map(str, self.widths))}; powers of the width: {powers})"

    def plot(self, ax: Any = None, step: int = -1) -> Any:
        """Plot the changes against the width with matplotlib, and return the axes: in muP, all lines are flat.

        Args:
            ax: axes to plot on; by default the current axes of pyplot.
            step: the step that is shown; by default the last.

        Raises:
            ImportError: if matplotlib is not installed.
        """
        plt = imported("matplotlib.pyplot", "CoordinateCheck.plot", "sweeps")
        ax = plt.gca() if ax is None else ax
        steps = next(iter(self.changes.values())).shape[1]
        for name, x in self.changes.items():
            ax.plot(self.widths, x[:, step], "o-", label=f"{name} (width$^{{{self.growth(step)[name]:.2f}}}$)")
        ax.set_xscale("log", base=2)
        ax.set_yscale("log", base=2)
        ax.set(xlabel="width", ylabel=f"mean |change| after {step % steps} steps")
        ax.legend()
        return ax


def coordinate_check(
    make: Make, widths: Sequence[int], *, steps: int = 4, seeds: int = 1, key: PRNGKeyArray | None = None
) -> CoordinateCheck:
    """Train a model at several widths for a few steps, and measure how its activations change: the test of muP.

        def make(width, key):
            model = eqx.nn.MLP(8, 2, width, depth=2, key=key)
            optimizer, model = mx.mup(mx.Adam(1e-2), model, narrow)

            def loss_fn(model):
                hidden = jax.vmap(model.layers[0])(x)
                output = jax.vmap(model)(x)
                return jnp.mean((output - y) ** 2), {"hidden": hidden, "output": output}

            return optimizer, model, loss_fn

        check = sweeps.coordinate_check(make, [64, 128, 256, 512])
        check.plot()
        check.growth()

    In muP, the change of every activation after a few steps is independent of the width. In the standard
    parametrization with Adam it grows with the width, so the best learning rate shrinks. Keep the batch fixed, and use
    the learning rate of the training.

    Args:
        make: function of a width and a random key, which returns the optimizer, the parameters or the model, and a
            function of these that returns the loss and the activations to watch, by name. The gradients are those of
            the loss.
        widths: the widths, at least two.
        steps: the number of steps.
        seeds: the number of initializations, over which the sizes are averaged.
        key: random key; by default `jax.random.key(0)`.

    Returns:
        the sizes of activations and of their changes, with `growth()` and `plot()`.

    References:
        Yang et al., [Tensor Programs V: Tuning Large Neural Networks via Zero-Shot Hyperparameter
        Transfer](https://arxiv.org/abs/2203.03466), 2022, appendix D.1.
    """
    check_integer("sweeps.coordinate_check", "steps", steps)
    check_integer("sweeps.coordinate_check", "seeds", seeds)
    ordered = sorted(set(widths))
    if len(ordered) < 2:
        raise ValueError(f"`sweeps.coordinate_check` compares several widths, such as `[64, 128, 256]`; got {widths}.")
    keys = jax.random.split(checked_key("sweeps.coordinate_check", key), seeds)
    runs = [[_sizes(*make(width, k), steps) for k in keys] for width in ordered]
    means = {name: np.mean([[run[name] for run in of_width] for of_width in runs], axis=1) for name in runs[0][0]}
    sizes, changes = ({name: x[:, i] for name, x in means.items()} for i in (0, 1))
    return CoordinateCheck(np.asarray(ordered), sizes, changes)


def _sizes(optimizer: AbstractTransform, params: Any, loss_fn: LossFunction, steps: int) -> dict[str, np.ndarray]:
    """The sizes of each activation before the first step and after each, and those of its change, `[2, steps + 1]`."""

    @eqx.filter_jit
    def step(params: Any, state: Any) -> tuple[Any, Any, Mapping[str, Array]]:
        (_, activations), grads = eqx.filter_value_and_grad(loss_fn, has_aux=True)(params)
        return *optimizer.step(grads, state, params), activations

    state, seen = optimizer.init(params), []
    for _ in range(steps + 1):
        params, state, activations = step(params, state)
        seen.append({name: np.asarray(x, np.float64) for name, x in activations.items()})
    first = seen[0]
    return {
        name: np.array([[np.abs(x[name] - start).mean() for x in seen] for start in (0, first[name])]) for name in first
    }
