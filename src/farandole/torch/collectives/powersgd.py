"""PowerSGD: a matrix is sent as the product of two thin ones (Vogels, Karimireddy and Jaggi, NeurIPS 2019).

For the sum M of all ranks' matrices [n, m], one step of subspace iteration finds the main directions of its columns:

    P = M Q      [n, r]  each rank multiplies its own matrix; P is summed
    P = orthonormal columns of P
    Q = M^T P    [m, r]  as before; Q is summed
    M ~ P Q^T

Q is kept for the next step, in which it is already near the right directions. The part of a rank's own matrix that P
Q^T omits is its residual, which the rank adds to its next matrix.

The products of a rank's own matrix are computed by torch. All ranks compute on the sums, which have the same bits, only
by elementwise operations, which are exactly rounded on every processor: so all have the same results, whatever their
matrix libraries do. On a GPU, no number is read meanwhile, because that would wait for the GPU.

A call has two rounds. Waiting for the first of several calls begins the second round of all, so that a step of an
optimizer has two rounds in total, and not two for each matrix. On a GPU, a round of a call is one request.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farandole.torch.collectives.packed import Packed, packed
from farandole.worker.collectives.allreduce import ALLREDUCE
from farandole.worker.collectives.calls import allreduce_call, checked_dtype
from farandole.worker.collectives.compression import Feedback, PowerSGD
from farandole.worker.collectives.declaration import Options
from farandole.worker.collectives.front_end import FrontEnd
from farandole.worker.core.dtype import Average
from farandole.worker.core.handle import Call
from farandole.worker.core.session import Session

# A column whose square loses this much when the earlier columns are subtracted consists of them, except for rounding.
DEPENDENT = 1e-10
# The number of elements that are processed at once when a product is written, so that they stay in the cache.
BLOCK_ELEMENTS = 1 << 16


Reduce = Callable[[Packed, int, float], Call]


def powersgd_call(
    front: FrontEnd[torch.Tensor],
    session: Session,
    recipe: PowerSGD,
    memory: Feedback | None,
    tensors: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor | None],
    names: Sequence[str],
    options: Options,
    group: int,
) -> Call:
    """Return a call that reduces tensors; its result is the tuple of outputs (a new one for None).

    Tensors are sent uncompressed if two thin matrices would not be smaller, or if they do not have floating-point
    numbers.

    Raises:
        ValueError: a tensor cannot be sent.
    """
    for tensor, name in zip(tensors, names, strict=True):
        checked_dtype(front, ALLREDUCE, tensor, name, options)
    results = [
        torch.empty_like(tensor, requires_grad=False) if output is None else output
        for tensor, output in zip(tensors, outputs, strict=True)
    ]
    parts = list(zip(tensors, results, names, strict=True))
    factored = [is_worth_factoring(tensor, recipe.rank) for tensor in tensors]
    plain = Plain(
        [part for part, is_factored in zip(parts, factored, strict=True) if not is_factored],
        lambda sent: allreduce_call(front, session, sent.sent, sent.received, sent.names, options, group),
    )

    def reduce(sent: Packed, op: int, postscale: float) -> Call:
        scaled = {"op": op, "prescale": 1.0, "postscale": postscale}
        return allreduce_call(front, session, sent.sent, sent.received, sent.names, scaled, group)

    matrices = [
        Matrix(*part, _state(memory, recipe.rank, part[0], part[2]), options["prescale"], keeps=memory is not None)
        for part, is_factored in zip(parts, factored, strict=True)
        if is_factored
    ]
    return PowerSGDCall(memory, plain, matrices, reduce, options["op"], options["postscale"], tuple(results))


def is_worth_factoring(tensor: torch.Tensor, rank: int) -> bool:
    """Return whether two thin matrices of this rank have fewer elements than the tensor, viewed as a matrix."""
    if tensor.dim() < 2 or tensor.numel() == 0 or not tensor.is_floating_point():
        return False
    rows = tensor.shape[0]
    return rank * (rows + tensor.numel() // rows) < tensor.numel()


class State:
    """The state that is kept for one matrix [n, m].

    Attributes:
        residual: [n, m], the part that was not sent.
        directions: Q, [m, r], for the beginning of the next step.
    """

    def __init__(self, tensor: torch.Tensor, rank: int, name: str) -> None:
        rows, columns = tensor.shape[0], tensor.numel() // tensor.shape[0]
        dtype = torch.promote_types(tensor.dtype, torch.float32)
        self.shape = tensor.shape
        self.residual = torch.zeros(rows, columns, dtype=dtype, device=tensor.device)
        # The seed follows from the name, so that every run gives the same.
        self.generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        self.directions = self._random(columns, rank)
        # Moving new numbers to a GPU in each step would wait for the GPU.
        self._spare = None if tensor.is_cpu else self._random(columns, rank)

    def _random(self, rows: int, columns: int) -> torch.Tensor:
        drawn = torch.randn(rows, columns, generator=self.generator, dtype=torch.float32, device="cpu")
        return drawn.to(self.residual)

    def begin_next_at(self, directions: torch.Tensor) -> None:
        """Keep Q. A zero column would stay zero forever, so it is replaced by a random one."""
        usable = directions.isfinite().all(0) & directions.any(0)
        spare = self._random(*directions.shape) if self._spare is None else self._spare
        self.directions = torch.where(usable, directions, spare)


def _state(memory: Feedback | None, rank: int, tensor: torch.Tensor, name: str) -> State:
    if memory is None:
        return State(tensor, rank, name)
    state: State | None = memory.states.get(name)
    if state is None or state.shape != tensor.shape or state.residual.device != tensor.device:
        state = memory.states[name] = State(tensor, rank, name)
    return state


class Matrix:
    """One tensor's part of a call: its rounds, in order."""

    def __init__(
        self, tensor: torch.Tensor, result: torch.Tensor, name: str, state: State, prescale: float, *, keeps: bool
    ) -> None:
        """Create the part; `keeps`: whether the state keeps the unsent rest."""
        self._result = result
        self.name = name
        self._state = state
        self._keeps = keeps
        self._tensor = tensor.detach()
        self._prescale = prescale
        self._own = state.residual

    def first_factor(self) -> torch.Tensor:
        """Return this rank's part of P, after adding the tensor to the residual."""
        self._own.add_(self._tensor.reshape(self._own.shape), alpha=self._prescale)
        return self._own @ self._state.directions

    def second_factor(self, summed: torch.Tensor) -> torch.Tensor:
        """Return this rank's part of Q, given the sum of P. The part that P Q^T omits remains in the residual."""
        self._basis = orthonormal(summed)
        weights = self._own.t() @ self._basis
        if self._keeps:
            self._owe_the_rest(weights)
        return weights

    def _owe_the_rest(self, weights: torch.Tensor) -> None:
        """Subtract the sent part from the residual. Elements that are not finite count as sent: they must not recur."""
        is_finite = self._basis.isfinite().all()
        if not is_finite.is_cpu:
            self._own.addmm_(self._basis, weights.t(), alpha=-1).masked_fill_(~is_finite, 0.0)
        elif is_finite:
            self._own.addmm_(self._basis, weights.t(), alpha=-1)
        else:
            self._own.zero_()

    def finish(self, summed: torch.Tensor) -> None:
        """Write the result, given the sum of Q."""
        self._state.begin_next_at(summed)
        write_product(self._basis, summed, self._result)


class Plain:
    """The part of a call that is reduced uncompressed: tensors, their results and their names."""

    def __init__(
        self, parts: Sequence[tuple[torch.Tensor, torch.Tensor, str]], reduce: Callable[[Packed], Call]
    ) -> None:
        """Create the call, without submitting it."""
        self._results = [result for _, result, _ in parts]
        self._sent = packed([tensor.detach() for tensor, _, _ in parts], self._results, [name for _, _, name in parts])
        self.call = reduce(self._sent)

    def finish(self) -> None:
        """Write the results, after the call is done."""
        self.call.result()
        for result, piece in zip(self._results, self._sent.pieces, strict=True):
            if piece is not result:
                result.copy_(piece)


class PowerSGDCall:
    """A call of two rounds, with an uncompressed part."""

    def __init__(
        self,
        memory: Feedback | None,
        plain: Plain,
        matrices: Sequence[Matrix],
        reduce: Reduce,
        op: int,
        postscale: float,
        results: tuple[torch.Tensor, ...],
    ) -> None:
        """Create the call, with the arguments of `powersgd_call`."""
        self._memory = memory
        self._plain = plain
        self._matrices = matrices
        self._reduce = reduce
        self._op, self._postscale = op, postscale
        self._results = results
        self._first: Call | None = None
        self._second: Call | None = None
        # The factors in the last round that has begun, one for each matrix.
        self._factors: Sequence[torch.Tensor] = ()
        self._error: Exception | None = None
        self._lock = threading.Lock()

    @torch.no_grad()
    def submit(self) -> None:
        """Begin the first round."""
        # Only the directions of P matter. An average does not grow with the number of ranks.
        first = self._round("p", [matrix.first_factor() for matrix in self._matrices], Average, 1.0)
        self._plain.call.submit()
        self._first = first
        first.submit()
        if self._memory is not None:
            self._memory.open.append(self)

    def _round(self, factor: str, factors: Sequence[torch.Tensor], op: int, postscale: float) -> Call:
        sent = packed(factors, factors, [f"{matrix.name}.{factor}" for matrix in self._matrices])
        self._factors = sent.pieces
        return self._reduce(sent, op, postscale)

    def wait(self) -> None:
        """Begin the second round of all calls of the same `Feedback`, and wait for the end of this one's."""
        while self._memory is not None and self._memory.open:
            self._memory.open.popleft().go_on()
        self.go_on()
        if self._second is not None:
            self._second.wait()
        self._plain.call.wait()

    @torch.no_grad()
    def go_on(self) -> None:
        """Wait for the first round, and begin the second one. Errors are raised by `result`."""
        with self._lock:
            if self._second is not None or self._error is not None:
                return
            assert self._first is not None
            self._first.wait()
            try:
                self._first.result()
                summed = zip(self._matrices, self._factors, strict=True)
                factors = [matrix.second_factor(factor) for matrix, factor in summed]
                second = self._round("q", factors, self._op, self._postscale)
                second.submit()
                self._second = second
            except Exception as error:
                self._error = error

    @torch.no_grad()
    def result(self) -> Any:
        """Return the outputs, or raise the error of the call."""
        try:
            self._plain.finish()
        except Exception as error:
            self._error = self._error or error
        if self._second is not None:
            self._second.result()
        if self._error is not None:
            raise self._error
        for matrix, factor in zip(self._matrices, self._factors, strict=True):
            matrix.finish(factor)
        return self._results

    def run(self) -> Any:
        """Submit the call, wait for it, and return its outputs."""
        self.submit()
        self.wait()
        return self.result()

    def begun(self) -> bool:
        """Return whether the first round has been submitted."""
        return self._first is not None

    def done(self) -> bool:
        """Return whether `wait` would return at once; begin the second round if this is due."""
        if self._first is None or (self._second is None and self._error is None and not self._first.done()):
            return False
        self.go_on()
        return self._plain.call.done() and (self._second is None or self._second.done())


def orthonormal(columns: torch.Tensor) -> torch.Tensor:
    """Return orthonormal columns with the same span as these, [n, r]; zeros where a column depends on earlier ones.

    The result has the same bits on every processor: the products of all pairs of columns in float64, by elementwise
    operations, then a Cholesky decomposition of their matrix [r, r], on the host in Python's numbers. NaN if any input
    is not finite.
    """
    wide = columns.to(torch.float64)
    matrix = _sum_of_rows(wide.unsqueeze(2) * wide.unsqueeze(1))
    if not matrix.is_cpu:
        return _orthonormal_on_device(wide, matrix).to(columns.dtype)
    products = matrix.tolist()
    if not all(math.isfinite(product) for row in products for product in row):
        return torch.full_like(columns, math.nan)
    basis: list[torch.Tensor] = []
    shares: list[list[float]] = []  # shares[j][i]: of column j along basis i; its length in the end
    for j in range(wide.shape[1]):
        rest, column = products[j][j], wide[:, j]
        own: list[float] = []
        for i in range(j):
            length = shares[i][i]
            inner = products[i][j] - sum(shares[i][k] * own[k] for k in range(i))
            share = inner / length if length else 0.0
            own.append(share)
            rest -= share * share
            column = column - basis[i] * share
        length = math.sqrt(rest) if rest > DEPENDENT * products[j][j] else 0.0
        shares.append([*own, length])
        basis.append(column / length if length else torch.zeros_like(column))
    return torch.stack(basis, dim=1).to(columns.dtype)


def _orthonormal_on_device(columns: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """Return the same as `orthonormal`, without reading a number: each round decomposes the remaining columns.

    Products and differences are separate operations, because a fused one might be rounded only once.

    Args:
        columns: [n, r].
        products: the products of all pairs of columns, [r, r].
    """
    is_finite = products.isfinite().all()
    squares = products.diagonal().clone()
    basis: list[torch.Tensor] = []
    for j in range(columns.shape[1]):
        rest = products[j, j]
        is_new = rest > DEPENDENT * squares[j]
        length = torch.where(is_new, rest, 1.0).sqrt()
        direction = torch.where(is_new, columns[:, j] / length, 0.0)
        shares = torch.where(is_new, products[j] / length, 0.0)
        products = products - shares.unsqueeze(1) * shares
        columns = columns - direction.unsqueeze(1) * shares
        basis.append(direction)
    return torch.where(is_finite, torch.stack(basis, dim=1), math.nan)


def _sum_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return the sum along the first dimension, always added in the same order."""
    count = rows.shape[0]
    while count > 1:
        half = (count + 1) // 2
        rows[: count - half] += rows[half:count]
        count = half
    return rows[0]


def write_product(basis: torch.Tensor, weights: torch.Tensor, result: torch.Tensor) -> None:
    """Write basis [n, r] times the transpose of weights [m, r] to `result`, of n m elements.

    Each column is added separately, and each product is rounded before it is added: so the bits are the same on every
    processor.
    """
    rows, columns = basis.shape[0], weights.shape[0]
    target = result.view(rows, columns)
    weights = weights.t().contiguous()
    block = max(1, BLOCK_ELEMENTS // columns)
    for begin in range(0, rows, block):
        part = basis[begin : begin + block]
        total = part[:, :1] * weights[0]
        for column in range(1, weights.shape[0]):
            total += part[:, column : column + 1] * weights[column]
        target[begin : begin + block] = total
