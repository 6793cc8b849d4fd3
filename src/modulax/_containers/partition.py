"""`Partition`: different transforms for different groups of parameters."""

import functools
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar

import equinox as eqx

from .._protocol.container import AbstractContainer, required_part
from .._protocol.extra_arguments import extra_for
from .._protocol.masks import AbstractLabels, as_labels, merge, select
from .._protocol.transform import AbstractTransform, Part
from .._roles.labels import with_roles_of
from .._support.checks import brief, listing
from .._support.module import AbstractState, nested
from .._support.types import Params, State, Updates
from ..tree._leafmap import one_function_per_key
from ..tree._math import shapes_without, zeros_without
from ..tree._paths import leaf_paths


class PartitionState(AbstractState):
    """State of `Partition`: the states of the transforms, by label."""

    optax_fields = ("inner_states",)

    inner_states: OrderedDict[Hashable, State] = nested()


class Partition(AbstractContainer):
    """Applies a different transform to each group of parameters (parameter groups), given by labels.

        Partition(
            {"decay": AdamW(1e-3), "no_decay": Adam(1e-3)},
            by_path({"*.bias": "no_decay", "*norm*": "no_decay", "*": "decay"}),
        )

    Each transform receives only the leaves of its own group, and has a state for these only. Give transforms that draw
    random numbers, such as two of `NoisySGD` or `DPSGD`, different keys: with equal ones, both groups get the same
    noise.

    Args:
        transforms: mapping from label to transform.
        labels: a tree of labels with the structure of the parameters or a prefix of it, a function of the parameters
            that returns such a tree, or patterns: `by_path`, `by_regex`, `by_type`.
        default: label of the leaves that get none from `labels`; by default, an unlabelled leaf is an error.

    Raises:
        ValueError: if `transforms` is not a mapping, or `default` not the label of a transform; in `init` and `update`,
            if a leaf has no label, or one without a transform.
    """

    _keeps = "gradients"

    transforms: Mapping[Any, AbstractTransform] = required_part(state="inner_states", converter=OrderedDict)
    labels: Any = eqx.field(static=True, converter=as_labels)
    default: Hashable = eqx.field(static=True, default=None)

    is_one_pass: ClassVar[bool] = True

    def __init__(self, transforms: Mapping[Any, AbstractTransform], labels: Any, default: Hashable = None):
        if not isinstance(transforms, Mapping):
            raise ValueError(
                f"`Partition` needs a mapping from labels to transforms, such as "
                f'`Partition({{"body": AdamW(1e-3), "head": SGD(0.1)}}, labels)`, got {brief(transforms)}.'
            )
        # Written out, because Equinox flattens the arguments of a generated `__init__`, and JAX can't flatten a dict
        # whose keys are not comparable, such as `{1: ..., "head": ...}`. An `OrderedDict` is not sorted.
        self.transforms = OrderedDict(transforms)
        self.labels = labels
        self.default = default

    def check(self) -> None:
        names: dict[str, Hashable] = {}
        for label in self.transforms:
            if names.setdefault(str(label), label) is not label:
                raise ValueError(
                    f"`Partition`: the labels {names[str(label)]!r} and {label!r} have the same name in paths and "
                    f"checkpoints. Rename one."
                )
        if self.default is not None and self.default not in self.transforms:
            raise ValueError(
                f"`Partition(default={self.default!r})` must be the label of a transform; "
                f"there are {listing(self.transforms)}."
            )

    def init(self, params: Params) -> PartitionState:
        """Return the initial state of every transform, for the leaves of its group."""
        self.labels.refuse_unused(self, params)
        groups, transforms = self.groups(params), with_roles_of(params, self).transforms
        for label, t in transforms.items() if self.example_axes else ():
            frozen = t._effect(select(params, groups[label])).frozen or [False]
            if not t.example_axes and any(groups[label]) and not all(frozen):
                raise ValueError(
                    f"`Partition`: another group takes per-example gradients, and `{type(t).__name__}` of the group "
                    f"{label!r} would take them for the gradient. Freeze the group with `SetToZero()`, or average them "
                    f"first: `Chain(aggregate.AveragePerElementUpdates(), {type(t).__name__}(...))`."
                )
        return PartitionState(
            OrderedDict((label, t.init(select(params, groups[label]))) for label, t in transforms.items())
        )

    def update(
        self, updates: Updates, state: PartitionState, params: Params | None = None, **extra: Any
    ) -> tuple[Updates, PartitionState]:
        """Run one step of every transform, on the leaves of its group."""
        new = updates
        new_states: OrderedDict[Hashable, State] = OrderedDict()
        whole = shapes_without(self.example_axes, updates)
        transforms = with_roles_of(whole, self).transforms
        # Groups that differ in numbers alone are traced as one rule.
        with one_function_per_key():
            for label, chosen in self.groups(whole).items():
                group_params = None if params is None else select(params, chosen)
                group_extra = extra_for(extra, chosen, updates, params, "Partition.update")
                group, new_states[label] = transforms[label].update(
                    select(updates, chosen), state.inner_states[label], group_params, **group_extra
                )
                if self.example_axes and not self.transforms[label].example_axes:
                    group = self._frozen_without_examples(label, group)
                new = merge(new, group, chosen)
        return new, PartitionState(new_states)

    def _frozen_without_examples(self, label: Hashable, group: Updates) -> Updates:
        """The updates of a group with zeros of the shapes of the parameters for the frozen ones."""
        # Other transforms see the gradients of all examples, and no mean of them: it might not be private.
        frozen = self.transforms[label]._effect(shapes_without(self.example_axes, group)).frozen
        if frozen is None:
            return group
        return merge(group, zeros_without(self.example_axes, select(group, frozen)), frozen)

    def each_part(self, state: State | None = None) -> Iterator[Part]:
        """Yield the transforms, which find the labels of a tree together.

        Args:
            state: the state of this container; if given, each part comes with its own state.
        """
        last: list[Any] = [object(), {}]  # no tree yet; one may be None

        def receives(label: Hashable, tree: Params) -> list[bool]:
            if tree is not last[0]:
                last[:] = tree, self.groups(tree)
            return last[1][label]

        for part in super().each_part(state):
            yield part._replace(receives=functools.partial(receives, part.key))

    def groups(self, tree: Params) -> dict[Hashable, list[bool]]:
        """Return which leaves have each label, in JAX's order.

        Args:
            tree: the parameters, or a tree like them.
        """
        assigned: AbstractLabels = self.labels
        labels = assigned.labels(tree, partial=self.default is not None)
        labels = [self.default if label is None else label for label in labels]
        for path, label in zip(leaf_paths(tree), labels, strict=True):
            if label not in self.transforms:
                raise ValueError(
                    f"`Partition`: the leaf `{path}` has the label {label!r}, and there is no transform for it; "
                    f"there are {listing(self.transforms)}."
                )
        # Groups without a leaf are listed too: their transforms have states.
        return {known: [label == known for label in labels] for known in self.transforms}
