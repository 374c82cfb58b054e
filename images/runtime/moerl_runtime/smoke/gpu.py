"""The same training steps over gloo, NCCL and DeepEP: losses and gradients must agree, or a dispatcher loses some.

Data are fixed by the seed: supervised steps on the task's answers, then GRPO steps on made-up samples with made-up engine
log-probabilities. Nothing is sampled from the model, so that a rounding difference cannot change the data.

Float32 exchanges differ by the order of sums alone: gloo on 2 and 4 ranks stays within 1e-6 of one process. DeepEP moves rows,
partial sums and their gradients as BF16, and rounds each sum once more. The same rounding in one process moves the gradient
of any tensor in the first step by 4e-3 of its length, and losses by 1e-3 in the first 5 steps. From then on AdamW enlarges it,
since its steps are as large for a small gradient: by 2e-2 of the largest loss within 20 supervised steps, and by 1e-2 within 8
of GRPO, whose clips and choices of experts are thresholds. So what is lost shows in the beginning: without the gradient of one
row in 64 a tensor is off by 6e-2, without that of one rank's router weights by 0.9 and a loss by 4e-2.
"""

from __future__ import annotations

import json
import math
import signal
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
    from torch import Tensor

    from moerl_runtime.smoke.grpo import Answer
    from moerl_runtime.smoke.model import TinyMoe

DispatcherName = Literal["alone", "gloo", "nccl", "deep_ep"]
HALVES = ("supervised", "grpo")

FLOAT32_TOLERANCE = 2e-3
BF16_TOLERANCES: Mapping[str, float] = {
    "gradients": 1e-2,
    "first norm": 2e-3,
    "first losses": 5e-3,
    "supervised": 5e-2,
    "grpo": 5e-2,
}
"""By what is compared (`differences`), with DeepEP on one side."""
FIRST_STEPS = 5
"""Supervised ones, before rounding grows."""
SKETCH_PLACES = 256
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
        # Ranks inherit that they ignore Ctrl-C, of which each would say a traceback: this process ends them.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            ranks = torch.multiprocessing.spawn(_rank, args=arguments, nprocs=comparison.ranks, join=False)  # type: ignore[attr-defined, no-untyped-call]
        finally:
            signal.signal(signal.SIGINT, before)
        try:
            # A process that fails ends the others and raises here.
            while not ranks.join():
                pass
        except KeyboardInterrupt:
            for process in ranks.processes:
                process.kill()
                process.join()
            raise
        found: dict[str, Any] = json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
    return found | {"seconds": round(clock() - began, 1)}


def tolerances(found: Mapping[str, Any], reference: Mapping[str, Any]) -> Mapping[str, float]:
    """What `differences` may be."""
    if "deep_ep" in (found["dispatcher"], reference["dispatcher"]):
        return BF16_TOLERANCES
    return dict.fromkeys(BF16_TOLERANCES, FLOAT32_TOLERANCE)


def differences(found: Mapping[str, Any], reference: Mapping[str, Any]) -> dict[str, float]:
    """Largest relative differences of both halves. Raises RuntimeFault for runs that cannot be compared.

        gradients       of a tensor in the first step, against its length
        first norm      of all gradients in the first step
        first losses    of the first supervised steps
        supervised      of all supervised losses
        grpo            of all GRPO losses

    GRPO's losses go through zero, so losses are measured against the largest one of the half."""
    if found["data"] != reference["data"]:
        raise RuntimeFault("--against", reference["data"], f"ran on other data than {found['data']}", "Run both alike.")
    if _tensors(found) != _tensors(reference):
        raise RuntimeFault(
            "--against", _tensors(reference), "has gradients of other tensors", "Run both with one release."
        )
    one, other = found["supervised"], reference["supervised"]
    norms = [(found["gradient_norms"][half][:1], reference["gradient_norms"][half][:1]) for half in HALVES]
    return {
        "gradients": max(
            _apart(gradient, reference["first_gradients"][half][name])
            for half in HALVES
            for name, gradient in found["first_gradients"][half].items()
        ),
        "first norm": max(_largest(*pair) for pair in norms),
        "first losses": _largest(one[:FIRST_STEPS], other[:FIRST_STEPS]),
        "supervised": _largest(one, other),
        "grpo": _largest(found["grpo"], reference["grpo"]),
    }


def _tensors(found: Mapping[str, Any]) -> list[str]:
    return sorted(
        f"{half}/{name}" for half, gradients in found.get("first_gradients", {}).items() for name in gradients
    )


def _largest(found: Sequence[float], reference: Sequence[float]) -> float:
    scale = max(abs(number) for number in reference)
    return max(abs(one - other) for one, other in zip(found, reference, strict=True)) / scale


def _apart(found: Sequence[float], reference: Sequence[float]) -> float:
    """Length of the difference over that of the reference."""
    return math.dist(found, reference) / math.hypot(*reference)


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
    gradients: dict[str, dict[str, list[float]]] = {}
    for half, steps in zip(HALVES, (comparison.supervised_steps, comparison.grpo_steps), strict=True):
        # Each from the fresh model: GRPO on answers that a trained one finds impossible would enlarge every rounding.
        model = ranks.build(shape, dispatcher, initial_state(shape, seed=comparison.seed), device)
        losses[half], norms[half], gradients[half] = _half(comparison, model, half, steps, rank=rank, device=device)
    if isinstance(dispatcher, DeepEp):
        dispatcher.close()
    return {
        "dispatcher": comparison.dispatcher,
        "ranks": comparison.ranks,
        "data": comparison.data,
        **losses,
        "gradient_norms": norms,
        "first_gradients": gradients,
        "software": _software(comparison),
    }


def _half(
    comparison: Comparison, model: TinyMoe, half: str, steps: int, *, rank: int, device: torch.device
) -> tuple[list[float], list[float], dict[str, list[float]]]:
    """(losses, gradient norms) of the steps and sketches of the first step's gradients, all over all ranks."""
    import torch

    from moerl_runtime.smoke import grpo, ranks

    settings = grpo.GrpoSettings()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    losses, norms = [], []
    first: dict[str, list[float]] = {}
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
        if step == 0:
            first = _gradients(model, whole=comparison.ranks == 1)
        norms.append(ranks.clip_gradients(model, GRADIENT_NORM_MAX))
        optimizer.step()
        losses.append(float(total))
    return losses, norms, first


def _gradients(model: TinyMoe, *, whole: bool) -> dict[str, list[float]]:
    """Sketch of every tensor's gradient. `whole`: this process has all experts."""
    from moerl_runtime.smoke import ranks

    own = [(name, parameter.grad) for name, parameter in model.named_parameters() if parameter.grad is not None]
    gradients = dict(own) if whole else ranks.whole(own)
    return {name: sketch(gradient) for name, gradient in gradients.items()}


def sketch(values: Tensor) -> list[float]:
    """A few sums of the values with mixed signs (a count sketch), in which the length of a difference is kept within 10%.

    Places and signs come from the position alone, so that sketches of two machines can be compared."""
    import torch

    flat = values.detach().double().cpu().flatten()
    mixed = torch.arange(len(flat)) * 2_654_435_761 & 0xFFFF_FFFF
    signs = 1 - 2 * (mixed >> 12 & 1)
    places: list[float] = torch.zeros(SKETCH_PLACES, dtype=flat.dtype).index_add_(0, mixed >> 24, flat * signs).tolist()
    return [float(f"{place:.6g}") for place in places]


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
