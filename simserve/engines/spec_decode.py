"""Sequences that decode together by verifying drafts, counted by step instead of by token.

Each gains one token per step and those of its drafts that are accepted, as `Acceptance` draws it. Sums over
the members of contexts, blocks and tokens asked for are kept for some hundred steps ahead: a member that
joins adds its own future to them, one that leaves takes it out again. So a step costs O(1) whatever the
batch, and the blocks of a run of steps are a look-up.

Follows vLLM V1: a step schedules the last token and the drafts, and holds `lookahead` slots more; what is
rejected is computed again, but its blocks stay held. With asynchronous scheduling the scheduler plans a step
before it knows what the one before accepted, and takes it that all was.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core import Request
from simserve.core.batch import Drafting
from simserve.engines.decode_batch import FOREVER, DecodeGroup
from simserve.kvcache import Pool
from simserve.kvcache.spec_decode import DraftBlockPool, DraftPrefixCache

Int64 = NDArray[np.int64]

DraftPool = DraftBlockPool | DraftPrefixCache
_AHEAD = 256
"""Steps for which the sums are kept."""
_LEAST_AHEAD = 64
"""They are made anew when fewer are left."""


class Pause(NamedTuple):
    """What is remembered of a request that does not decode now."""

    verified: int = 0
    """Verifications so far: the number of the next draw."""
    ahead: int = 0
    """Tokens that the scheduler takes it to have beyond those that it has (a step is not reported yet)."""
    before: int | None = None
    """Tokens computed before its last step; None if it decodes for the first time since it was admitted."""


class _Member(NamedTuple):
    request: Request
    joined: int
    """Step of the group; the columns below begin with it."""
    computed: Int64
    """Tokens computed before each step."""
    blocks: int
    """Blocks held on joining."""
    pause: Pause


class DraftedDecodes(DecodeGroup):
    """A `DecodeGroup` whose members verify drafts."""

    __slots__ = (
        "_asked",
        "_base",
        "_booked",
        "_computed",
        "_drafting",
        "_held",
        "_lags",
        "_members",
        "_needed",
        "_taken",
        "pauses",
        "pool",
        "width",
    )

    def __init__(self, pool: DraftPool, drafting: Drafting, lags: bool) -> None:
        """An empty group at step 0; `lags`: the scheduler plans ahead."""
        super().__init__(pool.block_size)
        self.width = drafting.width
        """Tokens that a member asks for in a step."""
        self.pauses: dict[int, Pause] = {}
        """Requests that decoded and will again, by id."""
        self.pool = pool
        self._drafting = drafting
        self._lags = lags
        self._members: dict[int, _Member] = {}
        self._base = 0
        """Step of the first entry of the following sums over members."""
        self._computed = np.zeros(_AHEAD + 1, np.int64)
        self._held = np.zeros(_AHEAD + 1, np.int64)
        """Blocks once those of the step are taken."""
        self._asked = np.zeros(_AHEAD + 1, np.int64)
        self._taken = 0
        """Blocks held now."""
        self._needed = 0
        """Blocks that were last taken for a step."""
        self._booked = False
        """True if the next step's blocks are taken."""

    # -- members ---------------------------------------------------------------------------------------

    def join(self, request: Request) -> None:
        """Add a request whose `computed` is true now; sets its `joined_step` and `decoding`."""
        request.joined_step = self.step
        request.decoding = True
        pause = self.pauses.pop(request.id, Pause())
        member = self._member(request, request.computed, self.pool.blocks.pop(request.id), pause)
        self._members[request.id] = member
        self.size += 1
        self._taken += member.blocks
        self._add(member, 1)

    def leave(self, request: Request) -> None:
        """Remove a member and bring its `computed` up to date; clears `decoding`.

        Its blocks are handed to the pool's books, unless they are there already.
        """
        blocks = self.blocks_of(request)
        self.pool.blocks.setdefault(request.id, blocks)
        member = self._members.pop(request.id)
        steps = self.step - member.joined
        self.pauses[request.id] = Pause(member.pause.verified + steps, 0, self._before(member))
        request.computed = int(member.computed[steps])
        request.decoding = False
        self.size -= 1
        self._taken -= blocks
        self._add(member, -1)

    def computed(self, request: Request) -> int:
        """Return the member's computed tokens as of now."""
        member = self._members[request.id]
        return int(member.computed[self.step - member.joined])

    def optimistic(self, request: Request) -> int:
        """Return what the scheduler takes the member to have computed when it plans the next step."""
        return self._planned_at(self._members[request.id], self.step)

    def certain(self, request: Request) -> int:
        """Return the member's tokens that were known when its last step was planned: what may be cached."""
        return self._before(self._members[request.id]) + 1

    def blocks_of(self, request: Request) -> int:
        """Return the blocks that the member holds now."""
        member, step = self._members[request.id], self.step - 1 + self._booked
        if step < member.joined:
            return member.blocks
        slots = self._planned_at(member, step) + self.width + self.pool.lookahead
        return max(member.blocks, -(-min(slots, self.pool.longest) // self.block_size))

    # -- steps -----------------------------------------------------------------------------------------

    def asked(self) -> int:
        """Return the tokens that the next step computes if nobody is cut short."""
        return int(self._asked[self.step - self._base])

    def contexts(self, steps: int) -> Int64:
        """Return the sum over members of the tokens attended in each of the next steps, int64[steps]."""
        first = self.step - self._base
        return self._computed[first : first + steps] + self.size * self.width

    def blocks_next(self) -> int:
        """Return the new blocks that the next step needs; FOREVER if somebody is near its longest length."""
        now = self.step - self._base
        if self._asked[now] != self.size * self.width:
            return FOREVER  # it must be asked one by one
        return int(self._held[now]) - self._taken

    def take_next(self, pool: Pool, needed: int) -> None:
        """Take the `needed` blocks of the next step; enter in the cache those that its tokens fill."""
        pool.take(needed)
        self.booked(needed)
        self._fill(pool, 0)

    def booked(self, needed: int) -> None:
        """The next step's `needed` blocks are taken."""
        self._booked = True
        self._needed = needed
        self._taken = int(self._held[self.step - self._base])

    def take_steps(self, pool: Pool, done: int, steps: int) -> None:
        """Take the blocks of the next `steps` steps, those of the first `done` being taken already."""
        first = self.step - self._base
        pool.take(int(self._held[first + steps - 1] - self._held[first + done - 1]))
        self._taken = int(self._held[first + steps - 1])
        self._fill(pool, steps - 1)

    def full_blocks(self, request: Request, ahead: int = 0) -> int:
        """Return the full blocks of tokens known when the step after `ahead` more is planned.

        As without drafts (`window_decodes`), a step's own tokens are known but for its last; of a result in
        flight nothing is.
        """
        member = self._members[request.id]
        own = self.step + ahead - member.joined - self._lags
        known = int(member.computed[own]) if own >= 0 else self._before(member)
        return (known + 1) // self.block_size

    def steps_blocked(self) -> int:
        """Return the steps, the next included, after which no block was filled since it."""
        if not self.pool.quoted:
            return super().steps_blocked()
        now = {request.id: self.full_blocks(request) for request, *_ in self._members.values()}
        for ahead in range(1, self.block_size):
            if any(self.full_blocks(one, ahead) > now[one.id] for one, *_ in self._members.values()):
                return ahead
        return self.block_size

    def blocks_within(self, steps: int) -> int:
        """Return the new blocks that the next `steps` steps need together."""
        return int(self._held[self.step - self._base + steps - 1]) - self._taken

    def steps_within(self, blocks: int) -> int:
        """Return the most steps whose new blocks are at most `blocks`, the first being taken already."""
        if not self.size:
            return FOREVER
        first = self.step - self._base
        fit = int(np.searchsorted(self._held[first:-1], self._taken + blocks - self._needed, side="right"))
        short = self._asked[first : first + fit] != self.size * self.width
        return max(1, int(short.argmax()) if short.any() else fit)

    def advance(self, steps: int) -> None:
        """Let every member gain what `steps` steps accept."""
        self.step += steps
        self._booked = False
        if self.step - self._base > _AHEAD - _LEAST_AHEAD:
            self._renew()
        self.context = int(self._computed[self.step - self._base])

    # -- parts -----------------------------------------------------------------------------------------

    def _fill(self, pool: Pool, ahead: int) -> None:
        """Enter in the cache what members have filled once the step after `ahead` more is planned."""
        if pool.quoted:
            for member in self._members.values():
                pool.fill(member.request, self.full_blocks(member.request, ahead))

    def _member(self, request: Request, computed: int, blocks: int, pause: Pause) -> _Member:
        draws = np.arange(pause.verified, pause.verified + self._base + _AHEAD - self.step)
        gains = self._drafting.acceptance.tokens(np.int64(request.id), draws)  # pyright: ignore
        future = computed + np.concatenate([[0], np.cumsum(gains)])
        return _Member(request, self.step, future, blocks, pause)

    def _before(self, member: _Member) -> int:
        steps = self.step - member.joined
        if steps:
            return int(member.computed[steps - 1])
        before = member.pause.before
        return int(member.computed[0]) - 1 if before is None else before

    def _planned_at(self, member: _Member, step: int) -> int:
        """Return what the scheduler takes to be computed when it plans that step."""
        own = step - member.joined
        if not self._lags:
            return int(member.computed[own])
        return (
            int(member.computed[own - 1]) + self.width
            if own
            else int(member.computed[0]) + member.pause.ahead
        )

    def _planned(self, member: _Member, own: int) -> Int64:
        """Return the same for each step from the member's own number `own` on."""
        if not self._lags:
            return member.computed[own:]
        planned = np.empty(len(member.computed) - own, np.int64)
        planned[0] = self._planned_at(member, member.joined + own)
        np.add(member.computed[own:-1], self.width, out=planned[1:])
        return planned

    def _add(self, member: _Member, sign: int) -> None:
        """Add the member's steps from now on to the sums, or take them out."""
        pool, place, own = self.pool, self.step - self._base, self.step - member.joined
        planned = self._planned(member, own)
        slots = np.minimum(
            planned + (self.width + pool.lookahead + self.block_size - 1), pool.longest_ceiling
        )
        held = np.maximum(slots // self.block_size, member.blocks)
        if sign > 0:
            self._computed[place:] += member.computed[own:]
            self._held[place:] += held
        else:
            self._computed[place:] -= member.computed[own:]
            self._held[place:] -= held
        if planned[-1] + self.width < pool.longest:  # nowhere near its longest length
            self._asked[place:] += sign * self.width
        else:
            asked = np.clip(pool.longest - 1 - planned, 0, self.width)
            self._asked[place:] += sign * asked
        self.context = int(self._computed[place])

    def _renew(self) -> None:
        """Begin the sums anew with the present step."""
        members, step = self._members, self.step
        self._base = step
        for sums in (self._computed, self._held, self._asked):
            sums[:] = 0
        for member in list(members.values()):
            request, steps = member.request, step - member.joined
            computed, ahead = int(member.computed[steps]), member.pause.ahead
            if steps and self._lags:
                ahead = int(member.computed[steps - 1]) + self.width - computed
            pause = Pause(member.pause.verified + steps, ahead, self._before(member))
            members[request.id] = self._member(request, computed, self.blocks_of(request), pause)
            self._add(members[request.id], 1)
