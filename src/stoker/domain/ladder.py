"""The rungs of the planner for system memory, and what a shortfall says (M-57 to M-60, M-71).

Slots go before the window, f16 before q8_0; explicit parts are the same on every rung; nothing is launched below the
minimum. The window does not grow beyond the requested one in system memory (M-61). Total: every request and room end
in a plan or a shortfall, and every option a shortfall names was tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from stoker.domain.context import EngineWishes, LaunchPlan, PlanRequest, Shortfall
from stoker.domain.digest import plan_digest
from stoker.domain.kv_cache import can_quantise
from stoker.domain.pricing import MIB, Shape, charge_ram, checkpoint_cost, price_ram
from stoker.ids import RAM, PoolId

GIB = 1 << 30
ADAPTIVE_TOKENS = 65_536
SMALL_WINDOW_TOKENS = 32_768
SMALLEST_TOKENS = 256
STEP_TOKENS = 1_024
CACHE_RAM_BYTES = 2 * GIB
CHECKPOINTS = 8
BATCH_TOKENS, MICRO_BATCH_TOKENS = 2_048, 512
MAX_OPTIONS = 4

# Slots by the memory next to the compute (M-58): below each bound, that many; above all, the last.
_SLOT_TIERS = ((12 * GIB, 1), (24 * GIB, 2), (48 * GIB, 3))
_MOST_SLOTS = 4


@dataclass(frozen=True, slots=True)
class Rung:
    kv_type: str
    slots: int
    context_tokens: int


def climb(request: PlanRequest, room: Mapping[PoolId, int]) -> LaunchPlan | Shortfall:
    """The plan of the first rung that fits ``room``, else the shortfall with its tried options."""
    room_bytes = room.get(RAM, 0)
    plan = _first_fit(request, room_bytes)
    return plan if plan is not None else _shortfall(request, room_bytes)


def smallest_need(request: PlanRequest) -> dict[PoolId, int]:
    """What the smallest plan takes. A room holds some plan exactly when it holds this one."""
    return {RAM: _charge(request, shape_of(request, _smallest(request)))}


def requested_tokens(request: PlanRequest) -> int:
    """M-57: the explicit window, else min(native, 65,536); a model that does not tell gets the floor."""
    if request.context_tokens is not None:
        return request.context_tokens
    native = request.facts.context_native
    return min(native, ADAPTIVE_TOKENS) if native > 0 else max(request.context_floor_tokens, SMALLEST_TOKENS)


def minimum_tokens(request: PlanRequest) -> int:
    """min(native, floor, explicit); an explicit window is its own minimum."""
    if request.context_tokens is not None:
        return request.context_tokens
    return max(1, min(requested_tokens(request), request.context_floor_tokens))


def auto_slots(request: PlanRequest, fast_bytes: int) -> int:
    """M-58: explicit verbatim, one for embedding and rerank, else the tier of the memory there is."""
    if request.slots is not None:
        return request.slots
    if request.task != "generate":
        return 1
    return next((slots for bound, slots in _SLOT_TIERS if fast_bytes < bound), _MOST_SLOTS)


def kv_types(request: PlanRequest) -> tuple[str, ...]:
    """Automatic cache types in order (M-59). An explicit key or value type leaves nothing to choose.

    q8_0 is not offered without flash attention, where rows are not whole blocks, or where the operator declared the
    price: it would buy nothing.
    """
    wishes = request.wishes
    is_fixed = wishes.kv_type_k is not None or wishes.kv_type_v is not None
    if is_fixed or wishes.flash_attention is False or request.declared_bytes is not None:
        return ("f16",)
    return ("f16", "q8_0") if can_quantise(request.facts) else ("f16",)


def _first_fit(request: PlanRequest, room_bytes: int) -> LaunchPlan | None:
    for rung in _fixed_rungs(request, room_bytes):
        shape = shape_of(request, rung)
        if _charge(request, shape) <= room_bytes:
            return _plan(request, shape)
    if request.context_tokens is not None:
        return None
    kinds = kv_types(request)
    last = "f16" if _is_sensitive(request) else kinds[-1]
    for slots in range(_most_slots(request, room_bytes), _fewest_slots(request) - 1, -1):
        window = largest_window(request, room_bytes, kv_type=last, slots=slots)
        if window is not None:
            shape = shape_of(request, Rung(last, slots, window))
            return _plan(request, shape)
    return None


def _fixed_rungs(request: PlanRequest, room_bytes: int) -> Iterator[Rung]:
    """Rungs (a) and (c): the requested window, f16 then q8_0, slots downwards.

    Models that lose by a quantised cache get q8_0 only where it buys a second slot (M-59).
    """
    most, fewest, window = _most_slots(request, room_bytes), _fewest_slots(request), requested_tokens(request)
    kinds = kv_types(request)
    if _is_sensitive(request) and len(kinds) > 1 and fewest == 1:
        yield from (Rung(kind, slots, window) for kind in kinds for slots in range(most, 1, -1))
        yield Rung("f16", 1, window)
        return
    yield from (Rung(kind, slots, window) for kind in kinds for slots in range(most, fewest - 1, -1))


def largest_window(request: PlanRequest, room_bytes: int, *, kv_type: str, slots: int) -> int | None:
    """Rung (d): the largest multiple of 1,024 from the minimum to the requested window that fits, or the minimum.

    The charge does not fall as the window grows, so halving the range finds it.
    """

    def fits(tokens: int) -> bool:
        return _fits(request, Rung(kv_type, slots, tokens), room_bytes)

    minimum = minimum_tokens(request)
    found = _largest(-(-minimum // STEP_TOKENS), requested_tokens(request) // STEP_TOKENS, fits)
    return minimum if found is None and fits(minimum) else found


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    if low > high or not fits(low * STEP_TOKENS):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * STEP_TOKENS) else (low, middle - 1)
    return low * STEP_TOKENS


def _fits(request: PlanRequest, rung: Rung, room_bytes: int) -> bool:
    return _charge(request, shape_of(request, rung)) <= room_bytes


def _charge(request: PlanRequest, shape: Shape) -> int:
    return charge_ram(request.facts, request.profile, shape, declared_bytes=request.declared_bytes)


def _most_slots(request: PlanRequest, room_bytes: int) -> int:
    return auto_slots(request, room_bytes)


def _fewest_slots(request: PlanRequest) -> int:
    return 1 if request.slots is None else request.slots


def _is_sensitive(request: PlanRequest) -> bool:
    return request.facts.architecture in request.profile.kv_quant_sensitive


def _smallest(request: PlanRequest) -> Rung:
    kind = "f16" if _is_sensitive(request) else kv_types(request)[-1]
    return Rung(kind, _fewest_slots(request), minimum_tokens(request))


def shape_of(request: PlanRequest, rung: Rung) -> Shape:
    """The rung with everything else that costs memory: wishes first, then the defaults of M-42 and E-69."""
    wishes = request.wishes
    is_batched_input = request.task != "generate"  # an input must fit one micro-batch there
    micro_batch = wishes.micro_batch_tokens or (rung.context_tokens if is_batched_input else MICRO_BATCH_TOKENS)
    cache_ram = _cache_ram_bytes(request)
    shape = Shape(
        context_tokens=rung.context_tokens,
        slots=rung.slots,
        kv_type_k=wishes.kv_type_k or rung.kv_type,
        kv_type_v=wishes.kv_type_v or rung.kv_type,
        flash_attention=wishes.flash_attention is not False,
        micro_batch_tokens=micro_batch,
        use_mmap=wishes.use_mmap,
        cache_ram_bytes=cache_ram,
    )
    if wishes.checkpoints is not None:
        return replace(shape, checkpoints=wishes.checkpoints)
    each = checkpoint_cost(request.facts, request.profile, shape)
    return replace(shape, checkpoints=min(CHECKPOINTS, cache_ram // each)) if each else shape


def _cache_ram_bytes(request: PlanRequest) -> int:
    """The prompt cache's cap in whole MiB, as engines take it (M-42); none where nothing is generated."""
    if request.wishes.cache_ram_bytes is not None:
        return request.wishes.cache_ram_bytes
    if request.task != "generate" or request.declared_bytes is not None:
        return 0
    return min(CACHE_RAM_BYTES, request.ram_total_bytes // 20) // MIB * MIB


def _plan(request: PlanRequest, shape: Shape) -> LaunchPlan:
    wishes = request.wishes
    is_batched_input = request.task != "generate"
    batch = wishes.batch_tokens or (shape.context_tokens if is_batched_input else BATCH_TOKENS)
    threads = wishes.threads or request.physical_cores or max(1, request.cores // 2)
    plan = LaunchPlan(
        engine=request.engine,
        deployment=request.deployment,
        model_path=request.model_path,
        facts=request.facts,
        settings=request.settings,
        context_tokens=shape.context_tokens,
        slots=shape.slots,
        kv_type_k=shape.kv_type_k,
        kv_type_v=shape.kv_type_v,
        flash_attention=shape.flash_attention,
        batch_tokens=max(batch, shape.micro_batch_tokens),
        micro_batch_tokens=shape.micro_batch_tokens,
        gpu_layers=wishes.gpu_layers or 0,
        threads=threads,
        use_mmap=shape.use_mmap,
        cache_ram_bytes=shape.cache_ram_bytes,
        checkpoints=shape.checkpoints,
        footprint=price_ram(request.facts, request.profile, shape, declared_bytes=request.declared_bytes),
        task=request.task,
        reasons=_reasons(request, shape),
    )
    return replace(plan, digest=plan_digest(plan))


def _reasons(request: PlanRequest, shape: Shape) -> tuple[str, ...]:
    """Each automatic decision in a few words; flags are words of their own (M-55, M-57)."""
    native = request.facts.context_native
    found: list[str] = []
    if request.context_tokens is None:
        found.append(f"window {shape.context_tokens} of native {native or 'unknown'}, chosen automatically")
        if shape.context_tokens < min(native, SMALL_WINDOW_TOKENS):
            found.append("window-small")
    elif 0 < native < request.context_tokens:
        found.append("window-beyond-native")
    if request.slots is None:
        found.append(f"slots {shape.slots}, by the memory there is")
    if shape.kv_type_k != "f16" and request.wishes.kv_type_k is None:
        found.append(f"cache type {shape.kv_type_k}, since f16 does not fit the requested window")
    return tuple(found)


def _shortfall(request: PlanRequest, room_bytes: int) -> Shortfall:
    smallest = _smallest(request)
    needed = smallest_need(request)[RAM]
    high = max(requested_tokens(request), STEP_TOKENS) // STEP_TOKENS
    largest = _largest(1, high, lambda tokens: _fits(request, replace(smallest, context_tokens=tokens), room_bytes))
    return Shortfall(RAM, needed, room_bytes, largest, _options(request, room_bytes, needed, largest))


def _options(request: PlanRequest, room_bytes: int, needed: int, largest: int | None) -> tuple[str, ...]:
    """What would fit, cheapest first; each was planned again with that one change (M-71)."""
    wishes = request.wishes
    tries: list[tuple[str, PlanRequest]] = []
    if largest is not None:
        tries.append((f"context_tokens = {largest}", replace(request, context_tokens=largest)))
    if request.slots is not None and request.slots > 1:
        tries.append(("slots = 1", replace(request, slots=1)))
    if _cache_ram_bytes(request):
        tries.append(("no prompt cache in memory", _wishing(request, replace(wishes, cache_ram_bytes=0))))
    if (
        wishes.kv_type_k in {"f32", "f16", "bf16"}
        and wishes.flash_attention is not False
        and can_quantise(request.facts)
    ):
        narrow = replace(wishes, kv_type_k="q8_0", kv_type_v="q8_0")
        tries.append(("cache type q8_0", _wishing(request, narrow)))
    found = [words for words, changed in tries if _first_fit(changed, room_bytes) is not None]
    if _first_fit(request, needed) is not None:
        found.append(f"{in_gib(needed - room_bytes)} more memory for models")
    return tuple(found[:MAX_OPTIONS])


def _wishing(request: PlanRequest, wishes: EngineWishes) -> PlanRequest:
    return replace(request, wishes=wishes)


def in_gib(amount_bytes: int) -> str:
    """Bytes for people: GiB with two decimals, rounded up so that an advice is never short."""
    hundredths = -(-amount_bytes * 100 // GIB)
    return f"{hundredths // 100}.{hundredths % 100:02d} GiB"
