"""`SAM`: sharpness-aware minimization."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import PyTree

from .._protocol.container import AbstractContainer, in_dtypes_of, required_part
from .._protocol.step import apply_updates
from .._protocol.transform import AbstractTransform, zeros_returned
from .._support.arithmetic import copy_in, safe_increment
from .._support.module import AbstractState, like_params, nested, shared
from .._support.tracing import call_user
from .._support.types import Count, Params, State, Updates
from .._support.varying import cond
from ..tree._align import align, paired
from ..tree._leafmap import map_arithmetic
from ..tree._math import choose, trainable


class SAMState(AbstractState):
    """State of `SAM`: position in the round, states of both optimizers, and the unperturbed parameters `cache`.

    `cache` is None in opaque mode.
    """

    optax_fields = ("steps_since_sync", "opt_state", "adv_state", "cache")

    steps_since_sync: Count = shared()
    opt_state: State = nested()
    adv_state: State = nested()
    cache: PyTree = like_params(exact=True)


class SAM(AbstractContainer):
    r"""Sharpness-aware minimization: takes the gradient at the nearby point where the loss is highest.

    $$
    \begin{aligned}
    \hat w_t &= w_t + \rho\, g / \|g\|_2, \qquad g = \nabla f(w_t) \\
    w_{t+1} &= w_t + u_t, \qquad u_t \text{ the step of the optimizer for } \nabla f(\hat w_t)
    \end{aligned}
    $$

    The perturbation is made by a second optimizer, the adversary, whose steps are negated to ascend. The paper uses

        SAM(SGD(0.1), Chain(Normalize(), SGD(rho)))

    Adaptive SAM weighs the perturbation by the parameters, $\hat w_t = w_t + \rho\, |w_t|^2 g / \||w_t|\, g\|_2$:

        weighted = Stateless(lambda updates, params: jax.tree.map(lambda g, w: abs(w) * g, updates, params))
        SAM(SGD(0.1), Chain(weighted, Normalize(), weighted, SGD(rho)))

    There are two modes. By default, each call makes one step: every `sync_period`-th one of the optimizer, all others
    of the adversary. The training loop stays the usual one, but in between the parameters are at $\hat w$;
    `eval_params(state, params)` always returns $w$. With `opaque_mode`, one call makes the whole round, and calls
    `grad_fn(params, i)` for the gradient after step $i$ of the adversary:

        grad_fn = jax.grad(lambda params, i: loss(params, batch))
        updates, state = optimizer.update(grads, state, params, grad_fn=grad_fn)

    Call this inside your own `jit`: otherwise a plain function compiles a new program at every step. Prefer
    this mode in low precision: in the default one, the way back from $\hat w$ is rounded to the dtype of the gradients.

    Args:
        optimizer: optimizer of the parameters.
        adv_optimizer: the adversary; its learning rate is the radius $\rho$.
        sync_period: number of gradients in a round: one for the optimizer, the others for the adversary.
        reset_state: whether to reset the state of the adversary at each round. Its schedules begin again then: for a
            schedule of the radius, write `reset_state=False`.
        opaque_mode: whether one call makes a whole round.
        batch_axis_name: in opaque mode, name of the mapped axis over which the gradients of `grad_fn` are averaged.

    References:
        Foret et al., [Sharpness-Aware Minimization for Efficiently Improving
        Generalization](https://arxiv.org/abs/2010.01412), 2020; Kwon et al., [ASAM](https://arxiv.org/abs/2102.11600),
        2021.
    """

    optimizer: AbstractTransform = required_part(state="opt_state")
    adv_optimizer: AbstractTransform = required_part(state="adv_state", auxiliary=True)
    sync_period: int = eqx.field(static=True, default=2, metadata={"least": 1})
    reset_state: bool = eqx.field(static=True, default=True)
    opaque_mode: bool = eqx.field(static=True, default=False)
    batch_axis_name: str | None = eqx.field(static=True, default=None)

    _keeps = "direction"
    _why_last = "leads back from perturbed parameters"
    needs: ClassVar[tuple[str, ...]] = ("params",)

    def init(self, params: Params) -> SAMState:
        """Return the states of both optimizers and, unless the mode is opaque, a copy of the parameters."""
        return SAMState(
            steps_since_sync=jnp.zeros((), jnp.int32),
            opt_state=self.optimizer.init(params),
            adv_state=self.adv_optimizer.init(params),
            cache=None if self.opaque_mode else jtu.tree_map(copy_in, params),
        )

    def update(
        self, updates: Updates, state: SAMState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, SAMState]:
        """Run a step of the adversary or of the optimizer; in opaque mode, a whole round."""
        if self.opaque_mode:
            return self._round(updates, state, params, extra)
        old, put = align(state.cache, updates, "SAM.update")
        leaves, treedef = jtu.tree_flatten(params)
        is_first = state.steps_since_sync == 0
        # Only at the first step of a round are the parameters unperturbed.
        cache = choose(is_first, leaves, old)

        # The adversary takes its dtypes from them: the branches of a `cond` return the same ones.
        zeros = zeros_returned(self.optimizer, updates, state.opt_state, params, extra)

        def adversary() -> tuple[Updates, SAMState]:
            steps, adv_state = self.adv_optimizer.update(updates, state.adv_state, params, **extra)
            # The adversary climbs: its optimizer would descend.
            steps = jtu.tree_map(lambda u, z: -u.astype(z.dtype), steps, zeros)
            n = safe_increment(state.steps_since_sync)
            return steps, SAMState(n, state.opt_state, adv_state, put(cache))

        def optimizer() -> tuple[Updates, SAMState]:
            start = treedef.unflatten(cache)
            steps, opt_state = self.optimizer.update(updates, state.opt_state, start, **extra)
            columns = jtu.tree_leaves(steps), cache, leaves
            # `c - p` first: the step may be smaller than what the sum of `c` and `u` rounds off.
            (out,) = map_arithmetic(lambda _, u, c, p: [c - p + u], (), columns, [jtu.tree_leaves(zeros)])
            steps = jtu.tree_structure(zeros).unflatten(out)
            adv_state = self._adversary_after(state.adv_state, params, steps)
            return steps, SAMState(jnp.zeros_like(state.steps_since_sync), opt_state, adv_state, put(cache))

        is_last = state.steps_since_sync >= self.sync_period - 1
        # `cond` and not `where`, because each call runs one of two optimizers.
        return cond(is_last, optimizer, adversary)

    # Overridden because within a round the parameters are perturbed by the adversary.
    def eval_params(self, state: SAMState, params: Params) -> Params:
        """Return the evaluation parameters of the optimizer at the unperturbed parameters.

        Args:
            state: the state of this container.
            params: the parameters that are trained, or the whole model.
        """
        if state.cache is not None:
            cache = in_dtypes_of(params, state.cache, "SAM.eval_params")
            params = jtu.tree_map(lambda p, c: jnp.where(state.steps_since_sync > 0, c, p), params, cache)
        return AbstractContainer.eval_params(self, state, params)

    def _round(self, updates: Updates, state: SAMState, params: Params, extra: Any) -> tuple[Updates, SAMState]:
        grad_fn = extra.get("grad_fn")
        if grad_fn is None:
            raise ValueError(
                "`SAM(opaque_mode=True)` needs `grad_fn`: call `update(updates, state, params, grad_fn=...)` or "
                "`step(grads, state, params, grad_fn=...)` with a function of the parameters and of the index of the "
                "adversary's step."
            )
        grads, point, adv_state = updates, params, state.adv_state
        for i in range(self.sync_period - 1):
            steps, adv_state = self.adv_optimizer.update(grads, adv_state, point, **extra)
            point = apply_updates(point, jtu.tree_map(jnp.negative, steps))
            gradient = paired(trainable(call_user(grad_fn, point, i)), updates, "SAM(opaque_mode=True)")
            grads = jtu.tree_map(lambda new, g: new.astype(g.dtype), gradient, updates)
            if self.batch_axis_name is not None:
                grads = jax.lax.pmean(grads, self.batch_axis_name)
        out, opt_state = self.optimizer.update(grads, state.opt_state, params, **extra)
        return out, SAMState(state.steps_since_sync, opt_state, self._adversary_after(adv_state, params, out), None)

    def _adversary_after(self, adv_state: State, params: Params, steps: Updates) -> State:
        """The state of the adversary for the next round, which begins at the parameters after these steps."""
        return self.adv_optimizer.init(apply_updates(params, steps)) if self.reset_state else adv_state
