"""`vmap` for operators whose tensors lead with an axis of clients: the mapped axis joins it."""

from typing import Any

from torch import Tensor


def over_clients(op: Any) -> None:
    """Register the rule for `op`."""

    def rule(info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        def folded(value: Any, dim: int | None) -> Any:
            if not isinstance(value, Tensor):
                return value
            mapped = value.expand(info.batch_size, *value.shape) if dim is None else value.movedim(dim, 0)
            return mapped.flatten(0, 1)

        result = op(*[folded(value, dim) for value, dim in zip(args, dims, strict=True)])
        if isinstance(result, Tensor):
            return result.unflatten(0, (info.batch_size, -1)), 0
        return tuple(r.unflatten(0, (info.batch_size, -1)) for r in result), (0,) * len(result)

    op.register_vmap(rule)
