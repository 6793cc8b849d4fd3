"""The tests, and the type checker that every annotation of modulax meets while they run."""

import typing

from beartype import BeartypeConf, FrozenDict, beartype

# jaxtyping decorates methods one by one, where beartype cannot know what `Self` is; pyright does.
typechecked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({typing.Self: typing.Any})))
