"""What programs do with other libraries: Flax and Orbax keep, save and shard states."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax as real
import orbax.checkpoint as ocp
from flax import nnx, serialization as typed_serialization, traverse_util
from flax.core import FrozenDict, freeze
from flax.training.train_state import TrainState

from ._table import GRADS, PARAMS, idiom, idioms, take
from .states import adam, grouped, injected, scheduled

serialization: Any = typed_serialization  # whose types know a state as a dict


def created(o: Any, tx: Any = None) -> Any:
    return TrainState.create(apply_fn=None, params=PARAMS, tx=tx or o.adam(0.1))


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name) / "state"


# flax.serialization, whose dicts are those of many checkpoints.
idioms(
    state_dict_of_groups=lambda o: serialization.to_state_dict(grouped(o).init(PARAMS)),
    state_dict_of_injection=lambda o: serialization.to_state_dict(take(injected(o))[1]),
    state_as_bytes=lambda o: serialization.to_bytes(o.adam(0.1).init(PARAMS)),
    flat_names=lambda o: sorted(
        traverse_util.flatten_dict(serialization.to_state_dict(take(scheduled(o))[1]), sep="/")
    ),
    bytes_of_injection_read=lambda o: serialization.from_bytes(
        injected(o).init(PARAMS), serialization.to_bytes(take(injected(real))[1])
    ),
    train_state=lambda o: created(o).apply_gradients(grads=GRADS).opt_state,
    train_state_scanned=lambda o: (
        jax.lax.scan(lambda s, _: (s.apply_gradients(grads=GRADS), s.step), created(o), None, 2)[0].opt_state
    ),
    train_state_read=lambda o: (
        serialization.from_bytes(created(o), serialization.to_bytes(created(o).apply_gradients(grads=GRADS))).opt_state
    ),
    frozen_params=lambda o: take(o.adam(0.1), params=freeze(PARAMS), grads=freeze(GRADS)),
    frozen_params_masked=lambda o: take(
        o.multi_transform({"slow": o.sgd(0.1), "fast": o.adam(0.1)}, FrozenDict({"b": "slow", "w": "fast"})),
        params=freeze(PARAMS),
        grads=freeze(GRADS),
    )[0],
)


def boxed() -> Any:
    return {name: nn.Partitioned(x, ("x",) * x.ndim) for name, x in PARAMS.items()}


idioms(
    specs_of_boxed_params=lambda o: jax.tree.map(
        str, nn.get_partition_spec(jax.eval_shape(o.adam(0.1).init, boxed())), is_leaf=lambda x: isinstance(x, jax.P)
    ),
    boxed_update=lambda o: take(o.adam(0.1), params=boxed(), grads=boxed())[0]["w"].value,
)


# Orbax.
@idiom
def orbax_tree(o: Any) -> Any:
    with folder() as path, ocp.PyTreeCheckpointer() as saver:
        saver.save(path, {"opt": adam(o), "params": PARAMS})
        raw = saver.restore(path)
        return saver.restore(path, item={"opt": o.adam(0.1).init(PARAMS), "params": PARAMS})["opt"], raw["opt"]


# flax.nnx.
class Model(nnx.Module):
    """Two parameters and a loss."""

    def __init__(self):
        self.kernel, self.bias = nnx.Param(PARAMS["w"]), nnx.Param(PARAMS["b"])

    def loss(self) -> jax.Array:
        return jnp.sum((self.kernel[...] + self.bias[...]) ** 2)


def optimizer(tx: Any) -> Any:
    model = Model()
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def stepped(tx: Any) -> Any:
    model, opt = optimizer(tx)
    opt.update(model, nnx.grad(Model.loss)(model))
    return model, opt


def flat(state: Any) -> dict[str, Any]:
    return {"/".join(map(str, path)): x for path, x in nnx.to_flat_state(state)}


@idiom
def nnx_rate_assigned(o: Any) -> Any:
    model, opt = optimizer(injected(o))
    opt.opt_state.hyperparams["learning_rate"] = jnp.asarray(0.5)
    opt.update(model, nnx.grad(Model.loss)(model))
    return model.kernel[...], opt.opt_state.hyperparams["learning_rate"]


@idiom
def nnx_replaced_by_a_dict(o: Any) -> Any:
    _, opt = stepped(o.adam(0.1))
    state = nnx.state(opt)
    pure = nnx.to_pure_dict(state)
    nnx.replace_by_pure_dict(state, jax.tree.map(lambda x: x * 0, pure))
    nnx.update(opt, state)
    return nnx.to_pure_dict(nnx.state(opt)), sorted(pure)


@idiom
def nnx_split_and_merged(o: Any) -> Any:
    graph, state = nnx.split(stepped(o.sgd(0.1, 0.9)))

    @jax.jit
    def step(state: Any) -> Any:
        model, opt = nnx.merge(graph, state)
        opt.update(model, nnx.grad(Model.loss)(model))
        return nnx.state((model, opt))

    return flat(step(state))


idioms(
    nnx_moments=lambda o: stepped(o.adam(0.1))[1].opt_state[0].mu["kernel"][...],
    nnx_chain=lambda o: flat(nnx.state(stepped(o.chain(o.clip(1.0), scheduled_nnx(o)))[1])),
    nnx_groups=lambda o: flat(
        nnx.state(
            stepped(
                o.multi_transform(
                    {"a": o.sgd(0.1), "b": o.adam(0.1)}, lambda p: jax.tree.map(lambda x: "b" if x.ndim > 1 else "a", p)
                )
            )[1]
        )
    ),
    nnx_rate_of_a_tuner=lambda o: [
        rate_of_a_tuner(optimizer(tx)[1]) for tx in (injected(o), o.adam(0.1), o.chain(o.clip(1.0), injected(o)))
    ],
)


def scheduled_nnx(o: Any) -> Any:
    return o.adamw(o.linear_schedule(0.1, 0.0, 10))


def rate_of_a_tuner(opt: Any) -> Any:
    """As Tunix does."""
    try:
        return opt.opt_state.hyperparams["learning_rate"][...]
    except AttributeError:
        for part in opt.opt_state:
            if hasattr(part, "hyperparams"):
                return part.hyperparams["learning_rate"][...]
    return None
