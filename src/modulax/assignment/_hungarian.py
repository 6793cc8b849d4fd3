"""The linear assignment problem, solved by shortest augmenting paths (Jonker-Volgenant).

How the pieces meet:

* `_solution` brings the costs into a form in which they can be added safely: a wide matrix, integers as unsigned
  integers (`_whole`), floats scaled down (`_scaled`), forbidden pairs at infinity.
* `_solve` adds the rows one after another: `step` grows the tree of shortest paths by one column, `augmented` flips the
  matched pairs along the path that reaches a free column, `begin` goes on to the next row. All of it is one
  `while_loop` over a `_Search`.
* `_completed` gives arbitrary free columns to rows for which only forbidden ones were left.
* The two public functions differ in the order of the pairs only.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Int

from .._plugin.arguments import check_matrix, promoted, real_arrays, traced_check


def hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
    r"""Solve the linear assignment problem: match each row with a different column at the lowest total cost.

    For example, match the predictions of a detector with the objects in an image (bipartite matching). From an $n
    \times m$ cost matrix $C$, it selects $k = \min(n, m)$ entries, no two of them in the same row or column, with the
    smallest sum:

    $$
    \min_{i, j} \; \sum_{t=1}^{k} C_{i_t j_t} \qquad i_1, \dots, i_k \text{ distinct}, \; j_1, \dots, j_k
    \text{ distinct}
    $$

    The indices have no derivative, but the costs do: `cost_matrix[i, j].sum()` can be used as a loss. To maximize the
    sum, negate the matrix. `jax.vmap` solves a batch of problems.

    Integer costs are added exactly, even where a float would round them; floats are added in at least float32. An
    infinite cost forbids a pair. If every assignment contains forbidden pairs, one with as few of them as possible is
    returned, and its cost is infinite. NaN and $-\infty$ are invalid, as in SciPy, because sums of them cannot be
    compared: they are treated as forbidden, and `jax.experimental.checkify` reports them. To prefer a pair to all
    others, give it a finite cost that is lower than the smallest one by more than $k$ times the range of the costs.

    The algorithm takes $O(k^2 \max(n, m))$ operations, in at most $k (k + 1) / 2$ sequential steps on vectors.

    Args:
        cost_matrix: $C$, real numbers of shape `(n, m)`.

    Returns:
        A pair `(i, j)` of row and column indices, each of shape `(k,)`, in optax's order. For a square matrix the
        columns are ascending; otherwise the indices of the smaller side are descending. `base_hungarian_algorithm`
        returns the same pairs in the order of the rows.

    Raises:
        ValueError: if `cost_matrix` is not a matrix of real numbers.

    References:
        Jonker and Volgenant, [A shortest augmenting path algorithm for dense and sparse linear assignment
        problems](https://doi.org/10.1007/BF02278710), 1987; Crouse, [On implementing 2D rectangular assignment
        algorithms](https://doi.org/10.1109/TAES.2016.140952), 2016
    """
    rows, n, is_tall = _solution("hungarian_algorithm", cost_matrix)
    if n == rows.size:
        return rows, jnp.arange(n)
    fewer, more = jnp.arange(n)[::-1], _inverse(rows, n)[::-1]
    return (more, fewer) if is_tall else (fewer, more)


def base_hungarian_algorithm(cost_matrix: ArrayLike) -> tuple[Int[Array, " k"], Int[Array, " k"]]:
    r"""Solve the linear assignment problem, with the pairs in the order of the rows, as SciPy returns them.

    The same as `scipy.optimize.linear_sum_assignment`, but usable inside compiled functions; see `hungarian_algorithm`.

    Args:
        cost_matrix: $C$, real numbers of shape `(n, m)`.

    Returns:
        A pair `(i, j)` of row and column indices, each of shape `(k,)` with $k = \min(n, m)$; `i` is ascending.

    Raises:
        ValueError: if `cost_matrix` is not a matrix of real numbers.

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
    """Return the row of each column (-1 for none), the number of rows, and whether the matrix was transposed."""
    (costs,) = real_arrays(owner, cost_matrix=cost_matrix)
    check_matrix(owner, "cost_matrix", costs)
    is_tall = costs.shape[0] > costs.shape[1]
    costs = jax.lax.stop_gradient(costs.T if is_tall else costs)
    n, m = costs.shape
    if n == 0:
        rows = jnp.full(m, -1)
    elif jnp.issubdtype(costs.dtype, jnp.floating):
        message = f"`{owner}(cost_matrix=...)` must not contain NaN or -inf."
        rows = _completed(_solve(_scaled(traced_check(costs, costs > -jnp.inf, message))), n)
    else:
        rows = _solve(_whole(costs))
    return rows, n, is_tall


def _inverse(rows: Int[Array, " m"], n: int) -> Int[Array, " n"]:
    """Invert a complete matching: the column of each row from the row of each column."""
    columns = jnp.arange(rows.size)
    return jnp.min(jnp.where(rows[None] == jnp.arange(n)[:, None], columns[None], rows.size), axis=1, initial=rows.size)


def _whole(costs: Array) -> Array:
    """Subtract each row's smallest entry from integers; as unsigned integers the differences can't overflow."""
    wide = costs.astype(jnp.int32) if costs.dtype.itemsize < 4 else costs
    unsigned = jnp.dtype(f"uint{8 * wide.dtype.itemsize}")
    return wide.astype(unsigned) - jnp.min(wide, axis=1, keepdims=True).astype(unsigned)


def _scaled(costs: Array) -> Array:
    """Cast to at least float32 and scale so that no sum overflows; entries that are not finite become infinity."""
    _, (costs,) = promoted(costs)
    is_finite = jnp.isfinite(costs)
    largest = jnp.max(jnp.abs(costs), where=is_finite, initial=0)
    costs = jnp.where(largest > float(jnp.finfo(costs.dtype).max) / 16, costs / 16, costs)
    return jnp.where(is_finite, costs, jnp.full_like(costs, jnp.inf))


def _lessened(costs: Array, axis: int) -> Array:
    """Subtract the smallest cost of each row or column where it is finite."""
    smallest = jnp.min(costs, axis=axis, keepdims=True)
    return costs - jnp.where(smallest < _top(costs), smallest, jnp.zeros_like(smallest))


def _top(x: Array) -> Array:
    """A bound above every cost: infinity, or the largest unsigned integer."""
    is_float = jnp.issubdtype(x.dtype, jnp.floating)
    return jnp.asarray(jnp.inf if is_float else jnp.iinfo(x.dtype).max, x.dtype)


class _Search(NamedTuple):
    """The shortest paths from an unmatched row to the columns, as far as they have been explored."""

    row: Array  # where all paths start; the number of rows once every row has been tried
    column: Array  # the column reached last, whose row is expanded next; -1 at the start
    prices: Array  # dual variables of the columns: never negative, and zero while a column is free
    lengths: Array  # length of the shortest path to each column
    before: Array  # predecessor of each column on that path, or -1
    reached: Array  # whether that path is final
    rows: Array  # the row matched with each column, or -1 if it is free


def _solve(costs: Array) -> Int[Array, " m"]:
    r"""Return the row of each column, or -1, for a matrix with no more rows than columns.

    A row stays unmatched if only forbidden columns are left for it. Then no path leads from it to a free column, and
    none ever will, so as many rows as possible are matched.

    Invariants: with the prices $w$ of the columns, the reduced costs $c_{ij} + w_j - \min_{j'} (c_{ij'} + w_{j'})$ are
    non-negative, and zero for matched pairs. Path lengths are sums of reduced costs. After an augmentation, the price
    of every reached column rises by the amount by which its path was shorter than the path to the free column, which
    preserves both invariants.

    A free column has price zero, and there is one until the end. Hence neither a price nor the length of the chosen
    path exceeds the largest cost, and no finite intermediate value exceeds three times the largest cost.
    """
    n, m = costs.shape
    if n == m:
        costs = _lessened(costs, 0)
    costs = _lessened(costs, 1)
    indices = jnp.arange(m)
    row_indices = indices[:n]
    # Greedy start: each column goes to the first row that has its smallest cost there.
    wish = jnp.min(jnp.where(costs == 0, indices[None], m), axis=1)
    rows = jnp.min(jnp.where(wish[:, None] == indices[None], row_indices[:, None], n), axis=0)
    waits = rows[wish] != row_indices
    top = _top(costs)

    def next_row(row: Array) -> Array:
        return jnp.min(jnp.where(waits & (row_indices > row), row_indices, n))

    def step(s: _Search) -> _Search:
        """Expand the row of the column that was reached last, and reach the nearest column."""
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
        # Among equally near columns, prefer a free one.
        is_nearest = ~s.reached & (open_lengths == shortest)
        column = jnp.min(jnp.where(is_nearest, jnp.where(s.rows < 0, indices, indices + m), 2 * m))
        is_free, column = column < m, column % m
        is_lost = (shortest == jnp.inf) if jnp.issubdtype(costs.dtype, jnp.floating) else jnp.zeros((), bool)
        s = s._replace(column=column, lengths=lengths, before=before, reached=s.reached | (indices == column))
        return jax.lax.cond(is_free | is_lost, lambda: begin(augmented(s, shortest, is_lost)), lambda: s)

    def augmented(s: _Search, shortest: Array, is_lost: Array) -> _Search:
        """Raise the prices of the reached columns, and flip the matched pairs along the path."""
        prices = jnp.where(s.reached & ~is_lost, s.prices + (shortest - s.lengths), s.prices)

        def hand_over(loop: tuple[Array, Array]) -> tuple[Array, Array]:
            column, rows = loop
            before = s.before[column]
            row = jnp.where(before < 0, s.row, rows[before])
            return before, jnp.where(indices == column, row, rows)

        # Terminates: every column on a path was reached after its predecessor, and the path starts at -1.
        end = jnp.where(is_lost, -1, s.column)
        _, rows = jax.lax.while_loop(lambda loop: loop[0] >= 0, hand_over, (end, s.rows))
        return s._replace(prices=prices, rows=rows)

    def begin(s: _Search) -> _Search:
        """Start the search for the next unmatched row."""
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
    # Terminates: each step reaches another column. The search for a row ends at a free column, or when only forbidden
    # ones are left. Before that it reaches matched columns only, of which there are at most as many as earlier rows.
    return jax.lax.while_loop(lambda s: s.row < n, step, start).rows


def _sum(x: Array, y: Array, less: Array) -> Array:
    """`x + y - less`, which is never negative; unsigned integers saturate at their largest value."""
    total = x + y
    result = total - less
    if jnp.issubdtype(x.dtype, jnp.floating):
        return result
    return jnp.where((total < x) & (total >= less), _top(x), result)


def _completed(rows: Int[Array, " m"], n: int) -> Int[Array, " m"]:
    """Match each unmatched row with one of the free columns."""

    def give(rows: Array) -> Array:
        has_column = jnp.any(rows[None] == jnp.arange(n)[:, None], axis=1)
        return rows.at[jnp.argmin(rows)].set(jnp.argmin(has_column))

    # Terminates: each round matches one more row.
    return jax.lax.while_loop(lambda rows: jnp.sum(rows >= 0) < n, give, rows)
