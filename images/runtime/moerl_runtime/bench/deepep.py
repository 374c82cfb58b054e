"""DeepEP v2 as a dispatcher. Written against `deep_ep.ElasticBuffer` of 2.1.0; imported where a GPU and the library are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moerl_runtime.bench.dispatch import Received
from moerl_runtime.bench.settings import Shape
from moerl_runtime.bench.workload import Rows

if TYPE_CHECKING:
    from torch import Tensor


def load() -> Any:
    """The library, to be loaded before NCCL opens its network plugin.

    At import it looks through the process's mapped files for a second NCCL, and takes `libnccl-net-ofi.so` for one
    (`check_nccl_so` in deep_ep/__init__.py of 2.0.0 and 2.1.0). Its check stays on: a real second NCCL is a crash later.
    """
    import deep_ep

    return deep_ep


class DeepEpDispatcher:
    """One ElasticBuffer. `hybrid` merges inside a node before a copy leaves it, which is how groups over EFA work; on one
    node there is nothing to merge.

    No CPU synchronization: a decode step has none, and time taken with it would be the CPU's.
    """

    def __init__(
        self,
        group: Any,
        shape: Shape,
        experts: Tensor,
        weights: Tensor,
        *,
        hybrid: bool,
        num_sms: int,
        num_contexts: int,
    ) -> None:
        deep_ep = load()
        self.name = "deepep"
        self._experts = experts.to(deep_ep.topk_idx_t)
        self._weights = weights
        self._shape = shape
        self._num_sms = num_sms
        self._buffer = deep_ep.ElasticBuffer(
            group,
            num_max_tokens_per_rank=experts.shape[0],
            hidden=shape.hidden,
            num_topk=shape.top_k,
            use_fp8_dispatch=False,
            allow_hybrid_mode=hybrid,
            prefer_overlap_with_compute=False,
            sl_idx=0,
            num_allocated_qps=num_contexts,
            explicitly_destroy=True,
        )

    def dispatch(self, sent: Rows) -> Any:
        return self._buffer.dispatch(
            x=sent.values if sent.scales is None else (sent.values, sent.scales),
            topk_idx=self._experts,
            topk_weights=self._weights,
            num_experts=self._shape.experts,
            num_max_tokens_per_rank=self._experts.shape[0],
            num_sms=self._num_sms,
            do_cpu_sync=False,
        )

    def received(self, dispatched: Any) -> Received:
        values, experts, weights, handle, _ = dispatched
        count = int(handle.psum_num_recv_tokens_per_scaleup_rank[-1].item())
        values, scales = values if isinstance(values, tuple) else (values, None)
        return Received(
            rows=Rows(values=values[:count], scales=None if scales is None else scales[:count]),
            numbers=handle.recv_src_metadata[:count, 0].to(experts.dtype),
            experts=experts[:count],
            weights=weights[:count],
        )

    def placed(self, outputs: Tensor, dispatched: Any) -> Tensor:
        """In as many rows as the dispatch made: without CPU synchronization that is the most there could be."""
        values = dispatched[0][0] if isinstance(dispatched[0], tuple) else dispatched[0]
        full = outputs.new_zeros((values.shape[0], outputs.shape[1]))
        full[: outputs.shape[0]] = outputs
        return full

    def combine(self, outputs: Tensor, dispatched: Any) -> Tensor:
        combined: Tensor = self._buffer.combine(x=outputs, handle=dispatched[3], num_sms=self._num_sms)[0]
        return combined

    def close(self) -> None:
        self._buffer.destroy()
