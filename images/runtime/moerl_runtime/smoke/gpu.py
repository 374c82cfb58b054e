"""The same training steps over gloo, NCCL and DeepEP: the losses must agree, or a dispatcher loses tokens or gradients.

Data are fixed by the seed: supervised steps on the task's answers, then GRPO steps on made-up samples with made-up engine
log-probabilities. Nothing is sampled from the model, so that a rounding difference cannot change the data.

Tolerances are relative to a half's largest loss. Float32 exchanges differ by the order of sums alone: gloo on 2 and 4 ranks
stays within 1e-6 of one process. DeepEP moves rows and their gradients as BF16, which rounds by up to 2**-9 of a value at
each of four hops a layer; the same rounding put into one process moves supervised losses by 4e-4, and GRPO's, whose clips
and choices of experts are thresholds, by 1e-2 within 8 steps and more with every further one. Hence few GRPO steps.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from moerl_runtime.bench import deepep
from moerl_runtime.bench.loaded import loaded_nccl
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.smoke import task

if TYPE_CHECKING:
    import torch

    from moerl_runtime.smoke.grpo import Answer
    from moerl_runtime.smoke.model import TinyMoe

DispatcherName = Literal["alone", "gloo", "nccl", "deep_ep"]

FLOAT32_TOLERANCE = 2e-3
BF16_TOLERANCE = 5e-2
TIMEOUT = timedelta(minutes=5)
LEARNING_RATE = 1e-3
GRADIENT_NORM_MAX = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What a run of the comparison does. `hidden` is a multiple of 256 for DeepEP; all runs must have the same."""

    dispatcher: DispatcherName
    ranks: int
    supervised_steps: int = 20
    grpo_steps: int = 8
    prompts: int = 32
    samples: int = 8
    hidden: int = 256
    experts: int = 8
    top_k: int = 2
    expert_hidden: int = 256
    seed: int = 0

    @property
    def data(self) -> dict[str, Any]:
        """What two runs must have in common."""
        return {name: value for name, value in asdict(self).items() if name not in ("dispatcher", "ranks")}


def run(comparison: Comparison, *, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    """Starts one process a rank on this machine, waits, and returns what rank 0 found."""
    import torch

    began = clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (comparison, folder)
        # A process that fails ends the others and raises here.
        torch.multiprocessing.spawn(_rank, args=arguments, nprocs=comparison.ranks)  # type: ignore[attr-defined, no-untyped-call]
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    return found | {"seconds": round(clock() - began, 1)}


def tolerance(found: Mapping[str, Any], reference: Mapping[str, Any]) -> float:
    """Relative, of a loss."""
    return BF16_TOLERANCE if "deep_ep" in (found["dispatcher"], reference["dispatcher"]) else FLOAT32_TOLERANCE


def differences(found: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, float]:
    """Largest relative difference of a loss in each half. Raises RuntimeFault for runs that cannot be compared.

    GRPO's losses go through zero, so both halves are measured against the largest loss of the half."""
    if found["data"] != reference["data"]:
        raise RuntimeFault("--against", reference["data"], f"ran on other data than {found['data']}", "Run both alike.")
    worst = {}
    for half in ("supervised", "grpo"):
        scale = max(abs(loss) for loss in reference[half])
        pairs = zip(found[half], reference[half], strict=True)
        worst[half] = max(abs(one - other) for one, other in pairs) / scale
    return worst


def _rank(rank: int, comparison: Comparison, folder: str) -> None:
    import torch
    from torch import distributed as dist

    on_gpu = comparison.dispatcher in ("nccl", "deep_ep")
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    if on_gpu:
        torch.cuda.set_device(device)
    if comparison.dispatcher == "alone" and comparison.ranks != 1:
        raise RuntimeFault("--ranks", comparison.ranks, "is not one process", "Write --ranks 1.")
    if comparison.dispatcher == "deep_ep":
        deepep.load()
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=comparison.ranks,
        timeout=TIMEOUT,
        device_id=device if on_gpu else None,
    )
    try:
        found = _train(comparison, rank=rank, device=device)
    finally:
        dist.destroy_process_group()
    if rank == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found), encoding="utf-8")


def _train(comparison: Comparison, *, rank: int, device: torch.device) -> dict[str, Any]:
    from moerl_runtime.smoke import ranks
    from moerl_runtime.smoke.dispatch import AllToAll, Alone, DeepEp, Dispatcher
    from moerl_runtime.smoke.model import ModelShape, initial_state

    shape = ModelShape(
        vocabulary=len(task.SYMBOLS),
        context=task.CONTEXT,
        hidden=comparison.hidden,
        experts=comparison.experts,
        top_k=comparison.top_k,
        expert_hidden=comparison.expert_hidden,
    )
    dispatcher: Dispatcher
    if comparison.dispatcher == "alone":
        dispatcher = Alone()
    elif comparison.dispatcher == "deep_ep":
        tokens = comparison.prompts * comparison.samples * task.CONTEXT
        dispatcher = DeepEp(
            experts=shape.experts,
            hidden=shape.hidden,
            top_k=shape.top_k,
            # DeepEP wants its buffers for what a rank may send at most.
            tokens_max=-(-tokens // comparison.ranks // 128) * 128,
            hybrid=False,
        )
    else:
        dispatcher = AllToAll(experts=shape.experts)
    losses: dict[str, list[float]] = {}
    norms: dict[str, list[float]] = {}
    for half, steps in (("supervised", comparison.supervised_steps), ("grpo", comparison.grpo_steps)):
        # Each from the fresh model: GRPO on answers that a trained one finds impossible would enlarge every rounding.
        model = ranks.build(shape, dispatcher, initial_state(shape, seed=comparison.seed), device)
        losses[half], norms[half] = _half(comparison, model, half, steps, rank=rank, device=device)
    if isinstance(dispatcher, DeepEp):
        dispatcher.close()
    return {
        "dispatcher": comparison.dispatcher,
        "ranks": comparison.ranks,
        "data": comparison.data,
        **losses,
        "gradient_norms": norms,
        "software": _software(comparison),
    }


def _half(
    comparison: Comparison, model: TinyMoe, half: str, steps: int, *, rank: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """(losses, gradient norms) of the steps, both over all ranks."""
    import torch

    from moerl_runtime.smoke import grpo, ranks

    settings = grpo.GrpoSettings()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    losses, norms = [], []
    for step in range(steps):
        answers = (right_answers if half == "supervised" else made_up_answers)(comparison, step)
        batch = grpo.batch_of(answers[rank :: comparison.ranks], device)
        count = float(sum(answer.response_length for answer in answers))
        optimizer.zero_grad()
        if half == "supervised":
            loss = grpo.supervised_loss(model, batch, tokens=count, balance_weight=settings.balance_weight)
        else:
            with torch.no_grad():
                before, _, _ = grpo.target_log_probs(model, batch)
            loss = grpo.loss(model, batch, before, settings, tokens=count)
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach().clone()
        if comparison.ranks > 1:
            torch.distributed.all_reduce(total)
            ranks.sum_gradients(model)
        norms.append(ranks.clip_gradients(model, GRADIENT_NORM_MAX))
        optimizer.step()
        losses.append(float(total))
    return losses, norms


def right_answers(comparison: Comparison, step: int) -> list[Answer]:
    """The task's own answers, each once per sample."""
    from moerl_runtime.smoke.grpo import Answer

    found = []
    for start in task.starts(comparison.seed * 1_000_003 + step, comparison.prompts):
        tokens = (*task.encode(task.prompt(start)), *task.encode(task.label(start)), task.END)
        answer = Answer(
            tokens=tokens, response_length=task.ANSWER_TOKENS, log_probs=(0.0,) * task.ANSWER_TOKENS, advantage=0.0
        )
        found += [answer] * comparison.samples
    return found


def made_up_answers(comparison: Comparison, step: int) -> list[Answer]:
    """Answers with some digits wrong, graded as samples are, as if an engine without knowledge had sampled them."""
    import random

    from moerl_runtime.smoke.grpo import advantages

    chance = random.Random(comparison.seed * 1_000_003 + step)  # noqa: S311 - data, not secrets
    right = right_answers(comparison, step)
    made, rewards = [], []
    for answer in right:
        tokens = list(answer.tokens)
        for place in range(len(tokens) - task.ANSWER_TOKENS, len(tokens) - 1):
            if chance.random() < 0.5:
                tokens[place] = chance.randrange(task.BASE)
        made.append(tuple(tokens))
        wanted = task.decode(answer.tokens[-task.ANSWER_TOKENS : -1])
        rewards.append(task.reward(task.decode(tokens[-task.ANSWER_TOKENS : -1]), wanted))
    groups = [rewards[first : first + comparison.samples] for first in range(0, len(rewards), comparison.samples)]
    flat = [advantage for group in advantages(groups) for advantage in group]
    unknowing = (-2.5,) * task.ANSWER_TOKENS
    return [
        replace(answer, tokens=tokens, log_probs=unknowing, advantage=advantage)
        for answer, tokens, advantage in zip(right, made, flat, strict=True)
    ]


def _software(comparison: Comparison) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__}
    if comparison.dispatcher in ("nccl", "deep_ep"):
        found |= {
            "cuda": torch.version.cuda,
            "nccl": loaded_nccl().version,
            "gpu": torch.cuda.get_device_name(),
        }
    if comparison.dispatcher == "deep_ep":
        found["deep_ep"] = deepep.load().__version__
    return found


def lines(found: Mapping[str, Any]) -> Sequence[str]:
    """For people."""
    return [
        f"{half}: loss {found[half][0]:.4f} -> {found[half][-1]:.4f} in {len(found[half])} steps"
        for half in ("supervised", "grpo")
        if found[half]
    ]
