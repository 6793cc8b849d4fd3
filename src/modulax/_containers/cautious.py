"""`Cautious` and `Grams`: containers that compare the signs of a direction with those of the gradient.

What is compared is the direction alone. So both look into optimizers and chains: the rules at the end of a chain that
act on single entries and read no gradient, such as weight decay and the learning rate, come after the comparison.
"""

import abc
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, PyTree

from .._protocol.container import AbstractContainer, AbstractOptimizer, required_part, step_counted
from .._protocol.fields import choice
from .._protocol.masks import select
from .._protocol.transform import AbstractTransform, Effect, everything_in
from .._support.module import AbstractState, nested
from .._support.types import Params, State, Updates
from .._transforms.scaling import Scale, ScaleByLearningRate, ScaleBySchedule
from ..tree._leafmap import map_arithmetic
from .arraywise import acts_on_entries
from .chain import Chain, ChainState, is_chain_state
from .optax_adapters import FromFunctions, FromOptax
from .order import decays_in, mistakes_around, refuse_examples

_LEAST = 1e-3  # of the mean of a mask, as in the authors' code


class SignGuidedState(AbstractState):
    """State of `Cautious` and `Grams`: the state of the inner transform."""

    inner_state: State = nested()


class _Split(NamedTuple):
    """The parts of a chain, by when they run.

    Args:
        direction: those that make the direction, which is compared with the gradient after them.
        within: an optimizer or a chain after them, inside which it is compared; None if there is none.
        end: those that run after the comparison.
    """

    direction: Chain
    within: str | None
    end: Chain


def _split(chain: Chain) -> _Split:
    parts = list(chain.parts.items())
    n = len(parts)
    while n and (acts_on_entries(parts[n - 1][1]) or type(parts[n - 1][1]) is ScaleBySchedule):
        n -= 1
    is_within = n > 0 and (isinstance(parts[n - 1][1], AbstractOptimizer) or type(parts[n - 1][1]) is Chain)
    within = parts[n - 1][0] if is_within else None
    return _Split(Chain(**dict(parts[: n - is_within])), within, Chain(**dict(parts[n:])))


def _compared(transform: AbstractTransform) -> AbstractTransform:
    """The transform inside whose updates are compared with the gradients."""
    if isinstance(transform, AbstractOptimizer):
        return _compared(next(transform.each_part()).transform)
    if type(transform) is not Chain:
        return transform
    direction, within, _ = _split(transform)
    return direction if within is None else _compared(transform.parts[within])


def _signs(transform: AbstractTransform, tree: PyTree) -> list[Any]:
    """1 for each leaf whose updates point along what the transform is given, and -1 where they point against it.

    The schedules of the transform have their values.
    """
    n = len(jtu.tree_leaves(tree))
    if (own := _own_sign(transform)) is not None:
        return [own] * n
    signs: list[Any] = [1.0] * n
    for part in transform.each_part():
        if part.auxiliary:
            continue
        try:
            seen = part._received(tree)
        except ValueError:  # inside `Flatten`, patterns are for the paths of other arrays
            continue
        inside = _signs(part.transform, select(tree, seen))
        for i, sign in zip(itertools.compress(range(len(seen)), seen), inside, strict=True):
            # The parts of a chain run one after the other, those of other containers beside each other.
            signs[i] = signs[i] * sign if type(transform) is Chain else jnp.minimum(signs[i], sign)
    return signs


def _own_sign(transform: AbstractTransform) -> Any:
    """The sign by which a transform multiplies what it is given; None if that is for its parts to say."""
    if transform._negates:
        return -1.0
    if type(transform) is ScaleByLearningRate:
        return -1.0 if transform.flip_sign else 1.0
    if type(transform) is Scale or type(transform) is ScaleBySchedule:
        return jnp.sign(transform.step_size)
    return None


def _product(first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    return [a * b for a, b in zip(first, second, strict=True)]


class _Step(NamedTuple):
    """What all transforms inside share in a step."""

    params: Params | None
    extra: Mapping[str, Any]
    gradients: Updates


class AbstractSignGuided(AbstractContainer):
    """A container that changes a direction by the signs of the gradients that it is given."""

    inner: eqx.AbstractVar[AbstractTransform]
    descends: eqx.AbstractVar[bool | None]

    is_arraywise: ClassVar[bool] = True
    is_one_pass: ClassVar[bool] = True

    @abc.abstractmethod
    def guide(self, u: Array, g: Array) -> Array:
        """Return the new direction of one array.

        Args:
            u: the direction, which points along the gradient where the two agree.
            g: the gradient.
        """

    def check(self) -> None:
        name = type(self).__name__
        refuse_examples(name, self.inner, "compares the updates with the gradients that it is given")
        for x in everything_in(self.inner) if self.descends is None else ():
            if type(x) in (FromOptax, FromFunctions):
                raise ValueError(
                    f"`{name}` cannot see whether the updates of `{type(x).__name__}` point against the gradient. "
                    f"Write `{name}(..., descends=True)` for an optimizer, whose updates are added to the parameters, "
                    f"and `descends=False` for a direction, which a learning rate after it negates."
                )

    def init(self, params: Params) -> SignGuidedState:
        """Return the initial state of the inner transform."""
        return SignGuidedState(self.inner.init(params))

    def update(
        self, updates: Updates, state: SignGuidedState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, SignGuidedState]:
        """Run one step of the inner transform, and change its direction by the signs of the gradients."""
        signs = [1.0] * len(jtu.tree_leaves(updates))
        if self.descends is None:
            step = _Step(params, extra, updates)
            new, inner_state = self._inside(self.inner, updates, state.inner_state, step, signs)
        else:
            new, inner_state = self.inner.update(updates, state.inner_state, params, **extra)
            new = self._guided(new, updates, [-s for s in signs] if self.descends else signs)
        return new, SignGuidedState(inner_state)

    def _inside(
        self, transform: AbstractTransform, updates: Updates, state: State, step: _Step, signs: Sequence[Any]
    ) -> tuple[Updates, State]:
        """Run one step of a transform, inside which the direction is changed.

        Args:
            transform: the transform.
            updates: its updates.
            state: its state.
            step: what all transforms inside share.
            signs: 1 for each leaf of the updates that points along the gradient, and -1 for others.
        """
        if isinstance(transform, AbstractOptimizer):
            transform._check_call(updates, step.params, step.extra)

            def inside(now: AbstractOptimizer) -> tuple[Updates, State]:
                return self._inside(now.transform(), updates, state.inner, step, signs)

            with jax.named_scope(type(transform).__name__):  # as its entry point does
                return step_counted(transform, state, step.extra, inside)
        if type(transform) is not Chain or not is_chain_state(state):
            own = _signs(transform.at(state), step.gradients)
            new, state = transform.update(updates, state, step.params, **step.extra)
            return self._guided(new, step.gradients, _product(signs, own)), state
        direction, within, end = _split(transform)
        states: dict[str, State] = {}

        def of(chain: Chain) -> ChainState:
            return ChainState({name: state[name] for name in chain.parts})

        def run(chain: Chain, updates: Updates) -> Updates:
            updates, new = chain.update(updates, of(chain), step.params, **step.extra)
            states.update({name: new[name] for name in chain.parts})
            return updates

        signs = _product(signs, _signs(direction.at(of(direction)), step.gradients))
        updates = run(direction, updates)
        if within is None:
            updates = self._guided(updates, step.gradients, signs)
        else:
            updates, states[within] = self._inside(transform.parts[within], updates, state[within], step, signs)
        return run(end, updates), ChainState(states)

    def _guided(self, directions: Updates, gradients: Updates, signs: Sequence[Any]) -> Updates:
        leaves, treedef = jtu.tree_flatten(directions)

        def rule(_: None, u: Array, g: Array, sign: Array) -> list[Array]:
            return [sign * self.guide(sign * u, g)]

        columns = leaves, jtu.tree_leaves(gradients), [jnp.asarray(sign, jnp.float32) for sign in signs]
        (out,) = map_arithmetic(rule, None, columns, (leaves,))
        return treedef.unflatten(out)

    def _effect(self, tree: Params) -> Effect:
        if not jtu.tree_leaves(tree):
            return Effect()
        return Effect(warnings=list(self._mistakes()), notes=list(self._notes(tree)))

    def _compared(self) -> AbstractTransform:
        return self.inner if self.descends is not None else _compared(self.inner)

    def _mistakes(self) -> Iterator[str]:
        name, compared = type(self).__name__, self._compared()
        yield from mistakes_around(name, compared)
        for x in everything_in(compared):
            if isinstance(x, AbstractContainer) and hasattr(x, "every_k"):
                other = type(x).__name__
                yield (
                    f"`{name}` doesn't see what `{other}` accumulates, and compares its steps with the last gradient. "
                    f"Write `{other}({name}(...), ...)`."
                )

    def _notes(self, tree: Params) -> Iterator[str]:
        """Whether the signs of the gradients decide on weight decay too."""
        name, inner = type(self).__name__, type(self.inner).__name__
        if any(decays_in(self._compared(), tree)):
            yield f"`{name}` acts on the whole step of `{inner}`, weight decay included."
        elif any(decays_in(self.inner, tree)):
            yield f"`{name}` acts on the direction of `{inner}`, before its weight decay."


class Cautious(AbstractSignGuided):
    r"""Skips the entries of a step whose sign differs from the gradient's (cautious optimizers).

    $$
    \begin{aligned}
    \phi_t &= [u_t g_t > 0] \\
    \tilde u_t &= u_t\, \phi_t / \max(\operatorname{mean}(\phi_t), 10^{-3})
    \end{aligned}
    $$

    for each array, with $u_t$ the direction of the inner transform and $g_t$ the gradient that `Cautious` receives.
    With `normalize="count"`, $\tilde u_t = u_t\, \phi_t\, n / (1 + \sum \phi_t)$ for an array of $n$ entries.

    The inner transform is a direction or an optimizer:

        Chain(Cautious(ScaleByAdam()), AddDecayedWeights(0.1), ScaleByLearningRate(1e-3))
        Cautious(AdamW(1e-3, weight_decay=0.1))

    These two are the same: in an optimizer or a chain, the direction is masked before the weight decay, learning rate
    and multipliers at its end, so that decoupled weight decay reaches every entry. In any other optimizer, such as
    `Muon`, whose parts have different learning rates, the whole step is masked and the weight decay with it; `describe`
    says which. Put `Cautious` around the optimizer itself, and what accumulates gradients or averages parameters
    around `Cautious`: `MultiSteps(Cautious(AdamW(1e-3)), 4)`.

    For cautious weight decay see `AddDecayedWeights`. `CautiousAdamW` and `CautiousLion` have the authors' defaults.

    Args:
        inner: the inner transform.
        normalize: whether the mask is divided by its mean, `"mean"`, or by the number of chosen entries plus one over
            the number of all, `"count"`.
        descends: whether the updates of `inner` point against the gradient, as those of an optimizer do, and the whole
            of them is masked. By default this is found from its parts; set it for transforms from optax.

    Raises:
        ValueError: if `inner` takes per-example gradients, or if `descends` is needed.

    References:
        Liang et al., [Cautious Optimizers: Improving Training with One Line of
        Code](https://arxiv.org/abs/2411.16085), 2024, and the authors' [code](https://github.com/kyleliang919/C-Optim).
    """

    inner: AbstractTransform = required_part()
    normalize: Literal["mean", "count"] = choice(("mean", "count"), "mean")
    descends: bool | None = eqx.field(static=True, default=None, kw_only=True)

    def guide(self, u, g):
        """Mask the entries in which the two differ in sign."""
        # Signs, because the product of two small numbers is zero.
        agrees = (jnp.sign(u) * jnp.sign(g).conj()).real > 0
        mask = agrees.astype(u.real.dtype)
        if self.normalize == "count":
            # As in `CautiousLion`. The direction is stored, or else XLA for TPU makes it twice and copies the momentum.
            masked, total = jax.lax.optimization_barrier((u * mask, jnp.sum(mask)))
            return masked * (u.size / (1 + total))
        return u * mask / jnp.maximum(jnp.sum(mask) / max(u.size, 1), _LEAST)


class Grams(AbstractSignGuided):
    r"""Takes the size of a step from an optimizer and its sign from the gradient (Grams).

    $$
    \tilde u_t = |u_t| \operatorname{sign}(g_t)
    $$

    with $u_t$ the direction of the inner transform and $g_t$ the gradient that `Grams` receives. Where momentum and
    gradient differ in sign, the step follows the gradient, and its size is that of the momentum.

        Chain(Grams(ScaleByAdam()), AddDecayedWeights(0.1), ScaleByLearningRate(1e-3))
        Grams(AdamW(1e-3, weight_decay=0.1))

    These two are the same: as in `Cautious`, weight decay and learning rate at the end of an optimizer are applied
    afterwards. `GramsAdamW` has the authors' defaults.

    Args:
        inner: the inner transform, a direction or an optimizer.
        descends: as in `Cautious`.

    Raises:
        ValueError: if `inner` takes per-example gradients, or if `descends` is needed.

    References:
        Cao et al., [Grams: Gradient Descent with Adaptive Momentum Scaling](https://arxiv.org/abs/2412.17107), 2024,
        and the authors' [code](https://github.com/Gunale0926/Grams).
    """

    inner: AbstractTransform = required_part()
    descends: bool | None = eqx.field(static=True, default=None, kw_only=True)

    def guide(self, u, g):
        """Return the magnitude of the direction with the sign of the gradient."""
        return jnp.abs(u) * jnp.sign(g)
