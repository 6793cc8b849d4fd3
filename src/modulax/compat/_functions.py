"""Functions of optax that take other arguments than the classes here, or do more than construct one."""

import functools
import warnings
from typing import Any

from .._containers.chain import Chain
from .._containers.injected import Injected, inject_hyperparams as _inject
from .._containers.masked import Masked
from .._containers.partition import Partition
from .._optimizers.adadelta import Adadelta
from .._optimizers.adam import Adam, AdamW, NAdam, NAdamW
from .._optimizers.noise import NoisySGD
from .._optimizers.sophia import Sophia
from .._transforms.adadelta import ScaleByAdadelta
from .._transforms.adam import ScaleByAdam
from .._transforms.basic import Identity, Stateless
from .._transforms.noise import AddNoise
from .._transforms.optimistic import ScaleByOptimisticGradient
from .._transforms.privacy import DifferentiallyPrivateAggregate
from .._transforms.regularization import AddDecayedWeights
from .._transforms.scaling import ScaleByLearningRate
from .._transforms.sophia import HutchinsonDiagonal
from ..tree import get as _get

Tx = Any
_HUTCHINSON = HutchinsonDiagonal(0)


def adadelta(learning_rate=None, rho=0.9, eps=1e-6, weight_decay=0.0, weight_decay_mask=None) -> Tx:
    if learning_rate is None:  # neither a learning rate nor a change of the sign
        return Chain(AddDecayedWeights(weight_decay, weight_decay_mask), ScaleByAdadelta(rho, eps))
    return Adadelta(learning_rate, rho, eps, weight_decay, weight_decay_mask)


def add_noise(eta, gamma, key=None, *, seed=None) -> Tx:
    return AddNoise(eta, gamma, _key("add_noise", key, seed))


def chain(*args) -> Tx:
    return Chain(*args)


def differentially_private_aggregate(l2_norm_clip, noise_multiplier, key=None, *, seed=None) -> Tx:
    key = _key("differentially_private_aggregate", key, seed)
    return DifferentiallyPrivateAggregate(l2_norm_clip, noise_multiplier, key)


def hutchinson_estimator_diag_hessian(random_seed=None) -> Tx:
    return HutchinsonDiagonal(0 if random_seed is None else random_seed)


def inject_hyperparams(inner_factory, static_args=(), hyperparam_dtype=None) -> Any:
    if not _constructs(inner_factory):
        return _inject(inner_factory, static_args, hyperparam_dtype)

    # The hyperparameters are the fields of what is constructed.
    def make(*args: Any, **kwargs: Any) -> Tx:
        return Injected(inner_factory(*args, **kwargs), static_args, hyperparam_dtype)

    return functools.wraps(inner_factory)(make)


inject_stateful_hyperparams = inject_hyperparams


def masked(inner, mask, *, mask_compatible_extra_args=False) -> Tx:
    del mask_compatible_extra_args  # extra arguments that are like the parameters are always masked here
    return Masked(inner, mask)


def nadam(learning_rate, b1=0.9, b2=0.999, eps=1e-8, eps_root=0.0, mu_dtype=None, *, nesterov=True) -> Tx:
    make = NAdam if nesterov else Adam
    return make(learning_rate, b1, b2, eps, eps_root=eps_root, mu_dtype=mu_dtype)


def nadamw(
    learning_rate,
    b1=0.9,
    b2=0.999,
    eps=1e-8,
    eps_root=0.0,
    mu_dtype=None,
    weight_decay=1e-4,
    mask=None,
    *,
    nesterov=True,
) -> Tx:
    make = NAdamW if nesterov else AdamW
    return make(learning_rate, b1, b2, eps, eps_root=eps_root, mu_dtype=mu_dtype, weight_decay=weight_decay, mask=mask)


def named_chain(*args) -> Tx:
    names = [name for name, _ in args]
    if len(set(names)) < len(names):
        raise ValueError(f"`optax.named_chain` needs a name for each transformation, each once, got {names}.")
    return Chain(**dict(args))


def noisy_sgd(learning_rate, eta=0.01, gamma=0.55, key=None, *, seed=None) -> Tx:
    return NoisySGD(learning_rate, eta, gamma, _key("noisy_sgd", key, seed))


def optimistic_adam(
    learning_rate, optimism=None, b1=0.9, b2=0.999, eps=1e-8, eps_root=0.0, mu_dtype=None, *, nesterov=True
) -> Tx:
    warnings.warn(
        "`optax.optimistic_adam` is deprecated: use `optimistic_adam_v2` instead.", DeprecationWarning, stacklevel=2
    )
    if callable(learning_rate):
        raise ValueError("`optax.optimistic_adam` takes no schedule: write `optax.optimistic_adam_v2`.")
    return Chain(
        ScaleByAdam(b1, b2, eps, eps_root, mu_dtype, nesterov=nesterov),
        ScaleByOptimisticGradient(learning_rate, learning_rate if optimism is None else optimism),
        ScaleByLearningRate(1.0),
    )


def partition(transforms, param_labels, *, mask_compatible_extra_args=False) -> Tx:
    del mask_compatible_extra_args
    return Partition(transforms, param_labels)


def scale_by_learning_rate(learning_rate=None, *, flip_sign=True) -> Tx:
    return Identity() if learning_rate is None else ScaleByLearningRate(learning_rate, flip_sign=flip_sign)


def sophia(
    learning_rate,
    b1=0.965,
    b2=0.99,
    eps=1e-8,
    weight_decay=1e-4,
    weight_decay_mask=None,
    gamma=0.01,
    clip_threshold=1.0,
    update_interval=10,
    hessian_diagonal_fn=_HUTCHINSON,
    mu_dtype=None,
    verbose=False,
    print_win_rate_every_n_steps=0,
) -> Tx:
    if verbose or print_win_rate_every_n_steps:
        warnings.warn("`sophia` prints nothing here; log the state instead.", stacklevel=2)
    numbers = learning_rate, b1, b2, eps, weight_decay, weight_decay_mask, gamma, clip_threshold, update_interval
    return Sophia(*numbers, hessian_diagonal_fn, mu_dtype, follow="optax")


def stateless_with_tree_map(f) -> Tx:
    return Stateless(f, leafwise=True)


def get(tree, key, default=None, filtering=None):
    return _get(tree, key, default, filtering)


def _constructs(factory: Any) -> bool:
    return getattr(factory, "constructs", False) or getattr(factory, "__module__", None) == __name__


def _key(name: str, key: Any, seed: Any) -> Any:
    """The key of a function that also takes a seed, under its old name."""
    if seed is not None:
        warnings.warn(f"`{name}(seed=...)` is deprecated: write `key=...`.", DeprecationWarning, stacklevel=3)
        if key is not None:
            raise ValueError(f"`{name}` takes one of `key` and `seed`, got both.")
        return seed
    if key is None:
        warnings.warn(f"`{name}` needs a key: write `key=0`, which is used now.", stacklevel=3)
        return 0
    return key


NAMES = {name for name, x in list(globals().items()) if getattr(x, "__module__", None) == __name__ and name[0] != "_"}
