"""Continue a training of optax with modulax, and the other way round."""

from typing import Any

from jaxtyping import PyTree

from ._renaming import Rename


def state_from_optax(
    template: PyTree,
    source: Any,
    optimizer: PyTree = None,
    params: PyTree = None,
    *,
    rename: Rename = None,
    strict: bool = True,
) -> Any:
    """Read a checkpoint of optax into modulax, to continue training.

        template = {"params": params, "opt_state": optimizer.init(params)}
        tree, report = checkpoint.state_from_optax(template, "runs/17/checkpoint", optimizer)

    The source is a folder that orbax wrote, the result of restoring it with orbax without a target, an optax state, or
    any tree with one in it, such as Flax's `TrainState` and `nnx.state(optimizer)`. The template is a modulax state, or
    a tree with modulax states and anything else to read. The optax state is looked up under the same name as the state
    in the template, or else under `opt_state`.

    The optimizer and the parameters say which form the state has in optax. The states of a chain are matched in its
    order, those of groups and of `named_chain` by name. optax may have them in other chains and masks, and with other
    schedules. Floats are cast to the dtypes of the template. The step count that an optimizer keeps for its schedules
    is taken from optax's. `Lookahead` and `ScheduleFree` need the parameters in the source too, since optax keeps the
    slow parameters among them and computes the average from them.

    Some fields hold a different quantity with `follow="optax"`, such as the maximum in `AMSGrad`. Give the optimizer
    this option if a remark in the report names such a field.

    This converts a state. To use an optax transformation in modulax, see `modulax.from_optax`.

    Args:
        template: a tree with states of modulax, or one state, `optimizer.init(params)`.
        source: the checkpoint, as described above.
        optimizer: the optimizer whose state is in the template; of several ones, a tree with the keys of the template.
            By default the one in the template, such as `tx` of a `TrainState`.
        params: the parameters, or their shapes and dtypes; by default those under `params` beside the state in the
            template.
        rename: renamed modules, see `restore`.
        strict: whether to raise an error for arrays without counterpart. Otherwise they are only listed in the report.
            Counters are never an error, nor are hyperparameters of transforms in the template, nor numbers that optax
            keeps in a state and modulax does not, such as `b1` of `schedule_free`. Those of `inject_hyperparams` belong
            in the state of `Injected`.

    Returns:
        The filled template, and a `Report` of where each array came from.

    Raises:
        ValueError: if the optimizer or the parameters are missing, the source has no optax state that corresponds, an
            array has another shape, or arrays are left over (unless `strict=False`).
        ImportError: if the source is a folder and orbax is not installed.
        FileNotFoundError: if there is no checkpoint at the path.
    """
    from ._optax_conversion import from_optax

    return from_optax(template, source, optimizer, params, rename, strict)


def state_to_optax(template: PyTree, source: PyTree, optimizer: PyTree = None, params: PyTree = None) -> Any:
    """Convert a state of modulax to one of optax, to continue training there.

        opt_state, report = checkpoint.state_to_optax(tx.init(params), state, optimizer, params)

    It is the inverse of `state_from_optax`. Restore a checkpoint of modulax first (`restore`). Where optax keeps a part
    of the state among the parameters, as the slow parameters of `lookahead`, pass trees with both:
    `{"params": params, "opt_state": state}`.

    Args:
        template: the initial state of the optax transformation, `tx.init(params)`, or a tree with it.
        source: the state of the corresponding modulax optimizer, or a tree with it.
        optimizer: the modulax optimizer; by default the one in the source, see `state_from_optax`.
        params: the parameters; by default those under `params` beside the state in the source.

    Returns:
        The filled template, and a `Report`. Constants in the optax state, such as hyperparameters, are those of the
        template, and are listed as fresh.

    Raises:
        ValueError: if the optimizer or the parameters are missing, one of the states has a field without counterpart
            in the other, or an array has another shape.
    """
    from ._optax_conversion import to_optax

    return to_optax(template, source, optimizer, params)
