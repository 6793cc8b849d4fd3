"""What is worth a second look in a plan, in sentences that say what to write."""

from collections.abc import Iterator

from .._plugin.messages import bytes_text, listing
from ._report import Plan, StateField

_SMALL = 0.01  # of the bytes of parameters and state: not worth a sentence
_TEMP_BYTES = 1.0  # per parameter
_PASSES = 1.3  # times the ideal


def notes(plan: Plan, elements: int, zero: str | tuple[str, ...] | None, is_update: bool) -> Iterator[str]:
    """The sentences about a plan for devices that hold `elements` parameters each."""
    if plan.memory_bytes is not None and plan.peak_bytes > plan.memory_bytes:
        yield (
            f"the peak of {bytes_text(plan.peak_bytes)} is {bytes_text(plan.peak_bytes - plan.memory_bytes)} more than "
            f"the {bytes_text(plan.memory_bytes)} of a device: it does not fit."
        )
    if plan.hbm_bytes is None:
        yield "the compiler refused the program, so that bytes moved, operations and transfers are unknown."
    if plan.resharded:
        remedy = "Give `jax.jit` those of the arguments: `out_shardings=(of_params, of_state)`."
        yield f"{listing(plan.resharded)} come back with other shardings: the next step is another program. {remedy}"
    least = _SMALL * (plan.param_bytes + plan.state_bytes)
    for field in plan.state:
        yield from _of_field(field, zero) if field.bytes > least else ()
    if is_update:
        yield from _of_update(plan, elements)
    for x in plan.collectives:
        if x.transform and x.kind != "all-reduce" and x.bytes > least:
            count = f"{x.count:,} {x.kind}{'s' * (x.count > 1)}"
            yield f"`{x.transform}` exchanges {bytes_text(x.bytes)} in {count}."


def _of_field(field: StateField, zero: str | tuple[str, ...] | None) -> Iterator[str]:
    if field.memory != "device":
        yield f"`{field.name}`, {bytes_text(field.bytes)}, is in the memory `{field.memory}`."
    elif field.over:
        axes = ", ".join(f"`{axis}`" for axis in field.over)
        given = () if zero is None else (zero,) if isinstance(zero, str) else tuple(zero)
        new = (*given, *(axis for axis in field.over if axis not in given))
        advice = f"pass `zero={new[0]!r}`." if len(new) == 1 else f"pass `zero={new!r}`."
        if set(field.over) <= set(given):
            advice = "none of its dimensions can be divided over it."
        yield f"`{field.name}` is replicated over {axes}, {field.copies:,} copies: {advice}"


def _of_update(plan: Plan, elements: int) -> Iterator[str]:
    if plan.temp_bytes and elements and plan.temp_bytes > _TEMP_BYTES * elements:
        each = f"{plan.temp_bytes / elements:.3g} bytes per parameter"
        yield f"temporary arrays take {bytes_text(plan.temp_bytes)}, {each}."
    if plan.hbm_bytes and plan.hbm_bytes > _PASSES * plan.ideal_bytes:
        most = next(iter(plan.transforms), "")
        of = f" Most is of `{most}`, {bytes_text(plan.transforms[most])}." if most else ""
        yield f"the update moves {plan.hbm_bytes / plan.ideal_bytes:.2g} times the ideal bytes.{of}"
