"""The linear assignment problem, by shortest augmenting paths."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

from .._support.arguments import check_matrix, real, widened
from .._support.value_checks import checked


def hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
    r"""The cheapest way to give each row a column of its own, or each column a row where there are fewer columns.

    Such as which prediction of a detector stands for which object. Of an $n \times m$ matrix $C$ of costs it chooses
    $k = \min(n, m)$ entries, no two in one row or in one column, whose sum is the least:

    $$
    \min_{i, j} \; \sum_{t=1}^{k} C_{i_t j_t} \qquad i_1, \dots, i_k \text{ distinct}, \; j_1, \dots, j_k
    \text{ distinct}
    $$

    The indices have no derivative; the costs have, so that `cost_matrix[i, j].sum()` can be trained on. For the largest
    sum instead of the least, negate the matrix. `jax.vmap` solves a batch of problems at once.

    Costs of integers are added up exactly, also where a float would round them; floats in at least float32. An infinite
    cost forbids a pair. If there is no way without forbidden pairs, as few as possible are chosen, and the sum of the
    costs is infinite. NaN and $-\infty$ are mistakes; they count as forbidden, and
    `jax.experimental.checkify` tells.

    Rows (or columns, if they are fewer) are matched one after another, each by the shortest path along which pairs
    change hands. This takes $O(k^2 \max(n, m))$ operations, in at most $k (k + 1) / 2$ steps on vectors.

    Args:
        cost_matrix: $C$, real numbers of shape `(n, m)`.

    Returns:
        A pair `(i, j)` of row and column indices, each of shape `(k,)`. As in optax, they are in the order of the
        columns if the matrix is square; if not, of rows and columns those that are fewer are in descending order.
        `base_hungarian_algorithm` gives the same pairs in the order of the rows.

    References:
        Jonker and Volgenant, [A shortest augmenting path algorithm for dense and sparse linear assignment
        problems](https://doi.org/10.1007/BF02278710), 1987;
        Crouse, [On implementing 2D rectangular assignment algorithms](https://doi.org/10.1109/TAES.2016.140952), 2016
    """
    rows, n, is_tall = _solution("hungarian_algorithm", cost_matrix)
    if n == rows.size:
        return rows, jnp.arange(n)
    fewer, more = jnp.arange(n)[::-1], _inverse(rows, n)[::-1]
    return (more, fewer) if is_tall else (fewer, more)


def base_hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
    r"""`hungarian_algorithm` with the pairs in the order of the rows, which is that of SciPy.

    For `scipy.optimize.linear_sum_assignment` inside of a compiled function.

    Args:
        cost_matrix: $C$, real numbers of shape `(n, m)`.

    Returns:
        A pair `(i, j)` of row and column indices, each of shape `(k,)` with $k = \min(n, m)$; `i` is ascending.

    References:
        Crouse, [On implementing 2D rectangular assignment algorithms](https://doi.org/10.1109/TAES.2016.140952), 2016
    """
    rows, n, is_tall = _solution("base_hungarian_algorithm", cost_matrix)
    columns = _inverse(rows, n)
    if is_tall:
        order = jnp.argsort(columns)
        return columns[order], order
    return jnp.arange(n), columns


def _solution(owner: str, cost_matrix: ArrayLike) -> tuple[Int[Array, " m"], int, bool]:
    """The row of each column, -1 where it has none, and the number of rows; transposed if the rows are more."""
    (costs,) = real(owner, cost_matrix=cost_matrix)
    check_matrix(owner, "cost_matrix", costs)
    is_tall = costs.shape[0] > costs.shape[1]
    costs = jax.lax.stop_gradient(costs.T if is_tall else costs)
    n, m = costs.shape
    if n == 0:
        rows = jnp.full(m, -1)
    elif jnp.issubdtype(costs.dtype, jnp.floating):
        message = f"`{owner}(cost_matrix=...)` must hold costs; NaN and -inf are none."
        rows = _completed(_solve(_scaled(checked(costs, costs > -jnp.inf, message))), n)
    else:
        rows = _solve(_whole(costs))
    return rows, n, is_tall


def _inverse(rows: Int[Array, " m"], n: int) -> Int[Array, " n"]:
    """The column of each row. Each has one."""
    columns = jnp.arange(rows.size)
    return jnp.min(jnp.where(rows[None] == jnp.arange(n)[:, None], columns[None], rows.size), axis=1, initial=rows.size)


def _whole(costs: Array) -> Array:
    """Each row of integers less its smallest entry, as unsigned integers, which hold the difference of any two."""
    wide = costs.astype(jnp.int32) if costs.dtype.itemsize < 4 else costs
    unsigned = jnp.dtype(f"uint{8 * wide.dtype.itemsize}")
    return wide.astype(unsigned) - jnp.min(wide, axis=1, keepdims=True).astype(unsigned)


def _scaled(costs: Array) -> Array:
    """In at least float32, so small that no sum below overflows; what is not finite forbids a pair."""
    _, (costs,) = widened(costs)
    is_finite = jnp.isfinite(costs)
    largest = jnp.max(jnp.abs(costs), where=is_finite, initial=0)
    costs = jnp.where(largest > float(jnp.finfo(costs.dtype).max) / 16, costs / 16, costs)
    return jnp.where(is_finite, costs, jnp.full_like(costs, jnp.inf))


def _lessened(costs: Array, axis: int) -> Array:
    """The costs less the smallest of each row or column, if that is finite."""
    smallest = jnp.min(costs, axis=axis, keepdims=True)
    return costs - jnp.where(smallest < _top(costs), smallest, jnp.zeros_like(smallest))


def _top(x: Array) -> Array:
    """More than every cost: infinity, or the largest of the unsigned integers."""
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.asarray(jnp.inf if is_float else jnp.iinfo(x.dtype).max, x.dtype)


class _Search(NamedTuple):
    """The shortest paths from a row that has no column yet, to the columns, as far as they are known."""

    row: Array  # which begins all paths; the number of rows once each has been tried
    column: Array  # which was reached last, whose row is next to be looked at; -1 is the beginning
    prices: Array  # of the columns: never negative, and zero as long as a column is free
    lengths: Array  # of the shortest path to each column
    before: Array  # the column before it on that path, or -1
    reached: Array  # whether that path is final
    rows: Array  # the row of each column, -1 if it is free


def _solve(costs: Array) -> Int[Array, " m"]:
    r"""The row of each column, or -1, of a matrix with no more rows than columns.

    A row gets no column if all that are left for it are forbidden. Then, as no path leads from it to a free column,
    none ever will, so that as many rows as possible get one.

    With prices $w$ of the columns, the reduced costs $c_{ij} + w_j - \min_{j'} (c_{ij'} + w_{j'})$ are not negative,
    and zero for all pairs that are matched. The lengths of paths are sums of these. The price of each column that was
    reached rises by as much as its path was shorter than the path to the free column, which keeps both true.

    There is a free column, of price zero, until the end. Hence no price exceeds the largest cost, nor does the length
    of the path that is chosen; and no finite number here exceeds three times the largest cost.
    """
    n, m = costs.shape
    if n == m:
        costs = _lessened(costs, 0)
    costs = _lessened(costs, 1)
    indices = jnp.arange(m)
    row_indices = indices[:n]
    # To begin with, each row that is the first to have its smallest cost in a column gets this column.
    wish = jnp.min(jnp.where(costs == 0, indices[None], m), axis=1)
    rows = jnp.min(jnp.where(wish[:, None] == indices[None], row_indices[:, None], n), axis=0)
    waits = rows[wish] != row_indices
    top = _top(costs)

    def next_row(row: Array) -> Array:
        return jnp.min(jnp.where(waits & (row_indices > row), row_indices, n))

    def step(s: _Search) -> _Search:
        """From the row of the column that was reached last to all columns, and on to the nearest."""
        begins = s.column < 0
        row = jnp.where(begins, s.row, s.rows[s.column])
        zero = jnp.zeros_like(top)
        so_far = jnp.where(begins, zero, s.lengths[s.column])
        least = jnp.where(begins, zero, _sum(costs[row, s.column], s.prices[s.column], zero))
        lengths = _sum(_sum(costs[row], s.prices, least), so_far, zero)
        is_shorter = ~s.reached & (lengths <= s.lengths)
        lengths = jnp.where(is_shorter, lengths, s.lengths)
        before = jnp.where(is_shorter, s.column, s.before)
        open_lengths = jnp.where(s.reached, top, lengths)
        shortest = jnp.min(open_lengths)
        # Of several columns that are equally near, a free one.
        is_nearest = ~s.reached & (open_lengths == shortest)
        column = jnp.min(jnp.where(is_nearest, jnp.where(s.rows < 0, indices, indices + m), 2 * m))
        is_free, column = column < m, column % m
        is_lost = (shortest == jnp.inf) if jnp.issubdtype(costs.dtype, jnp.floating) else jnp.zeros((), bool)
        s = s._replace(column=column, lengths=lengths, before=before, reached=s.reached | (indices == column))
        return jax.lax.cond(is_free | is_lost, lambda: begin(augmented(s, shortest, is_lost)), lambda: s)

    def augmented(s: _Search, shortest: Array, is_lost: Array) -> _Search:
        prices = jnp.where(s.reached & ~is_lost, s.prices + (shortest - s.lengths), s.prices)

        def hand_over(loop: tuple[Array, Array]) -> tuple[Array, Array]:
            column, rows = loop
            before = s.before[column]
            row = jnp.where(before < 0, s.row, rows[before])
            return before, jnp.where(indices == column, row, rows)

        # Ends: the columns of a path were reached one after another, and -1 before them.
        end = jnp.where(is_lost, -1, s.column)
        _, rows = jax.lax.while_loop(lambda loop: loop[0] >= 0, hand_over, (end, s.rows))
        return s._replace(prices=prices, rows=rows)

    def begin(s: _Search) -> _Search:
        return s._replace(
            row=next_row(s.row),
            column=jnp.full_like(s.column, -1),
            lengths=jnp.full_like(s.lengths, top),
            reached=jnp.zeros_like(s.reached),
        )

    lengths = jnp.zeros_like(costs, shape=m)
    none = jnp.full_like(indices, -1)
    rows = jnp.where(rows == n, none, rows)
    start = begin(_Search(none[0], none[0], lengths, lengths, none, jnp.zeros(m, bool), rows))
    # Ends: each step reaches another column. A free one, or none that is allowed, ends the search for this row; before
    # that come at most the columns that have a row, which are at most as many as the rows that came before this one.
    return jax.lax.while_loop(lambda s: s.row < n, step, start).rows


def _sum(x: Array, y: Array, less: Array) -> Array:
    """`x + y - less`, which is not negative; of unsigned integers the largest where it is larger than that."""
    total = x + y
    result = total - less
    if jnp.issubdtype(x.dtype, jnp.floating):
        return result
    return jnp.where((total < x) & (total >= less), _top(x), result)


def _completed(rows: Int[Array, " m"], n: int) -> Int[Array, " m"]:
    """Each row that has no column gets one that is left."""

    def give(rows: Array) -> Array:
        has_column = jnp.any(rows[None] == jnp.arange(n)[:, None], axis=1)
        return rows.at[jnp.argmin(rows)].set(jnp.argmin(has_column))

    # Ends: each round gives a row to a column that had none.
    return jax.lax.while_loop(lambda rows: jnp.sum(rows >= 0) < n, give, rows)
