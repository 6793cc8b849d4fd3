"""Laws on composition: a transform does the same in every container, in ours, in NNX and in optax."""

import warnings
from typing import Any

import jax.tree_util as jtu
import numpy as np

from .. import Injected, Masked, MultiSteps, Partition, Scheduled, SetToZero
from .._plugin.arrays import enable_x64
from .._plugin.containers import settings_of_optax
from .._plugin.transforms import AbstractHyperparameters
from ..authoring import Chain, Scale
from ._case import Case, expect, expect_close, expect_finite, in_float64, needs, optional, run, scaled


def law_a_chain_is_its_parts_one_by_one(case: Case) -> None:
    """In a chain, where consecutive leafwise rules are fused, a transform does the same as on its own."""
    with enable_x64(True):  # so that a difference is one of meaning, not of rounding
        params, *grads = in_float64((case.params, case.updates(0), case.updates(1)))
        # A transform of per-example gradients must come first in a chain.
        parts = [*([] if case.examples else [Scale(3.0)]), case.transform, Scale(0.25)]
        chain = Chain(*parts)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a part that should be the last one
            state, states = chain.init(params), [part.init(params) for part in parts]
        for g in grads:
            updates, state = case.update(g, state, params, transform=chain)
            one_by_one = g
            for i, part in enumerate(parts):
                one_by_one, states[i] = case.update(one_by_one, states[i], params, transform=part)
            expect_close(updates, one_by_one, "the chain's updates", 1e-13)
        expect_close([state[i] for i in range(len(state))], states, "the chain's states", 1e-13)


def law_a_mask_of_all_is_no_mask(case: Case) -> None:
    """`Masked` with every leaf selected equals the transform; with none selected, it equals the identity."""

    def everywhere(value: bool) -> Any:
        return lambda tree: jtu.tree_map(lambda _: value, tree)

    masked, _ = run(case, Masked(case.transform, everywhere(True)))
    expect_close(masked, run(case)[0], "`Masked` with all leaves", case.rtol)
    identity, _ = run(case, Masked(case.transform, everywhere(False)))
    expect_close(identity, [case.updates(seed) for seed in range(3)], "`Masked` with none")


def law_a_partition_gives_each_leaf_its_own(case: Case) -> None:
    """In a `Partition`, a transform does to its own leaves what it does in `Masked`, and nothing to the others."""
    leaves, treedef = jtu.tree_flatten(case.params)
    labels = treedef.unflatten(["this" if i % 2 else "zero" for i in range(len(leaves))])
    mask = jtu.tree_map(lambda label: label == "this", labels)
    # Pass functions, because the parameters may be Modules, whose fields don't accept labels.
    partition = Partition({"this": case.transform, "zero": SetToZero()}, lambda _: labels)
    masked = Masked(case.transform, lambda _: mask, otherwise="zero")  # of one shape with examples and without
    zero = [jtu.tree_map(lambda u, m: u if m else np.zeros_like(u), updates, mask) for updates in run(case, masked)[0]]
    expect_close(run(case, partition)[0], zero, "`Partition`", case.rtol)


@needs(lambda case: not case.examples)
def law_multisteps_steps_on_the_mean(case: Case) -> None:
    """`MultiSteps` returns zeros in between, and then a step on the mean of the updates it was given."""
    (zeros, first, _, second), _ = run(case, MultiSteps(case.transform, 2), steps=4)
    expect_close(zeros, jtu.tree_map(np.zeros_like, zeros), "between two steps")
    state = case.init()
    for seeds, step in (((0, 1), first), ((2, 3), second)):
        total = jtu.tree_map(lambda a, b: np.asarray(a) + np.asarray(b), *(case.updates(seed) for seed in seeds))
        expected, state = case.update(scaled(total, 0.5), state)
        expect_close(step, expected, "a step on the mean", 10 * case.rtol)


def law_numbers_in_the_state_are_the_same_numbers(case: Case) -> None:
    """`Injected` and `Scheduled`, which keep hyperparameters in the state, change nothing unless a value is changed."""
    expected, _ = run(case)
    expect_close(run(case, Injected(case.transform))[0], expected, "`Injected`", case.rtol)
    expect_close(run(case, Scheduled(case.transform))[0], expected, "`Scheduled`", case.rtol)


def _declare_to_nnx(tree: Any) -> None:
    """Declare a transform to NNX as its constructor does if `flax.nnx` is imported: it may be older than the import."""
    if isinstance(tree, AbstractHyperparameters):
        for part in jtu.tree_leaves(tree, is_leaf=lambda x: x is not tree):
            _declare_to_nnx(part)
        tree.__check_init__()


@needs(lambda case: not case.extra and not case.examples, packages=("flax",))
def law_nnx_optimizers_take_it(case: Case) -> None:
    """The stock `flax.nnx.Optimizer` can train with it, inside `nnx.jit`."""
    nnx = optional("flax.nnx")
    _declare_to_nnx(case.transform)

    class Net(nnx.Module):
        def __init__(self) -> None:
            self.dense = nnx.Linear(2, 2, rngs=nnx.Rngs(0))

    @nnx.jit
    def step(net: Any, optimizer: Any) -> None:
        optimizer.update(net, nnx.state(net, nnx.Param))  # the gradient of ½‖w‖²

    def params_of(net: Any) -> Any:
        return nnx.to_pure_dict(nnx.state(net, nnx.Param))

    with settings_of_optax():
        net = Net()
        params = params_of(net)
        updates, _ = case.transform.update(params, case.transform.init(params), params)
        optimizer = nnx.Optimizer(net, case.transform, wrt=nnx.Param)
        step(net, optimizer)
        expected = jtu.tree_map(lambda p, u: p + u, params, updates)
        expect_close(params_of(net), expected, "the parameters after a step", max(case.rtol, 1e-6))
        step(net, optimizer)
        expect_finite(params_of(net), "the parameters")
        expect(np.asarray(optimizer.step[...]) == 2, "the optimizer did not count its steps.")


@needs(lambda case: not case.extra, packages=("optax",))
def law_optax_chains_take_it(case: Case) -> None:
    """`optax.chain` accepts it as one of its own transformations, and it does the same there."""
    optax = optional("optax")
    with settings_of_optax():
        chain = optax.chain(optax.scale(3.0), case.transform, optax.scale(0.25))
        state = chain.init(case.params)
        own = case.init()
        for seed in range(2):
            updates, state = chain.update(case.updates(seed), state, case.params)
            expected, own = case.update(scaled(case.updates(seed), 3.0), own)
            expect_close(updates, scaled(expected, 0.25), "the updates of an optax chain", case.rtol)
