"""What the ranks of the smoke trainer do together: one model split over them, gradients, whole states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch import distributed as dist

from moerl_runtime.smoke.dispatch import Dispatcher
from moerl_runtime.smoke.model import ModelShape, TinyMoe, is_expert, share_of


def build(shape: ModelShape, dispatcher: Dispatcher, state: Mapping[str, Tensor], device: torch.device) -> TinyMoe:
    """This rank's part of the model that `state` describes whole."""
    rank = dist.get_rank() if dispatcher.ranks > 1 else 0
    model = TinyMoe(shape, dispatcher)
    model.load_state_dict(share_of(state, rank=rank, ranks=dispatcher.ranks))
    return model.to(device)


def sum_gradients(model: TinyMoe) -> None:
    """Adds the gradients of what every rank has. Experts got theirs from all ranks' tokens already, as rows came back."""
    shared = [parameter for name, parameter in model.named_parameters() if not is_expert(name)]
    gradients = [torch.zeros_like(part) if part.grad is None else part.grad for part in shared]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for parameter, gradient in zip(shared, torch.split(flat, [part.numel() for part in shared]), strict=True):
        parameter.grad = gradient.view_as(parameter).clone()


def clip_gradients(model: TinyMoe, most: float) -> float:
    """Scales all gradients to a norm of at most `most` over the whole model. Returns the norm before."""
    squares = {True: torch.zeros(()), False: torch.zeros(())}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            squares[is_expert(name)] = squares[is_expert(name)] + parameter.grad.square().sum().cpu()
    experts = squares[True].to(next(model.parameters()).device)
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(experts)
    norm = float((experts.cpu() + squares[False]).sqrt())
    if norm > most:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(most / norm)
    return norm


def whole(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """All ranks' parts put together, on every rank, in the CPU's memory."""
    made: dict[str, Tensor] = {}
    for name, tensor in tensors:
        if is_expert(name):
            parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, tensor.detach().contiguous())
            made[name] = torch.cat(parts).cpu()
        else:
            made[name] = tensor.detach().cpu()
    return made
