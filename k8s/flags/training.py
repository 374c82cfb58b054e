"""Flags that Miles and slime share: parallelism and paths from the Plan, a recipe that the file may change.

Three layers. What follows from the Plan is set once and cannot be overridden; the recipe is what upstream's own scripts
run a MoE model with; `workload.trainer.flags` changes the recipe and adds what the framework knows beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from infra.catalog import CATALOG
from infra.catalog.software import SoftwareStack
from infra.config.batch_plan import BATCH_FLAG, STALENESS_FLAG, STEPS_FLAG, count
from infra.config.faults import EnvironmentFault, Finding
from infra.config.model_plan import MODELS_PATH, MODELS_PREFIX
from infra.config.plan import Plan
from k8s.flags.known import SGLANG_PREFIX, is_known, nearest, unknown
from k8s.flags.shape import shape

Flags = dict[str, tuple[str, ...]]
"""Flag name, without dashes, to its values; a bare flag has none."""

KEY = "workload.trainer.flags"
RUNTIME = "moerl_runtime.trainer"
DATA_SOURCE = f"{RUNTIME}.data_source.DataSource"
TIMEOUT_MARGIN_MINUTES = 10
"""Megatron's own default: what a collective may take when no save holds it up."""

_DISPATCHERS: Mapping[str, Flags] = {
    "alltoall": {"moe-token-dispatcher-type": ("alltoall",)},
    "deepep": {"moe-token-dispatcher-type": ("flex",), "moe-enable-deepep": ()},
}

REFUSED: Mapping[str, str] = {
    "colocate": "engines run on other nodes than the trainer",
    "offload": "nothing shares the trainer's GPUs",
    "offload-train": "nothing shares the trainer's GPUs",
    "offload-rollout": "the trainer has no engines",
    "fully-async": "it brings its own generator, which waits for engines that the trainer does not have",
    "partial-rollout": "unfinished samples go back to the queue, not into the trainer",
    "rollout-external": "it gives the trainer an empty list of engines and fails on it",
    "use-fault-tolerance": "it restarts engines, and the trainer has none",
    "async-save": "the hook after a save then waits alone for a collective of all ranks",
    "use-rollout-routing-replay": "samples carry no expert routes",
    "reward-key": "rewards are numbers here, not documents",
    "disable-rollout-global-dataset": "checkpoints would be written without the cursor that a resume needs",
    "debug-rollout-only": "it does not train",
    "debug-skip-weight-update": "it publishes no weights, so engines would sample the first ones for ever",
    "debug-disable-optimizer": "it does not train",
    "no-check-for-nan-in-loss-and-grad": "steps whose gradients are not finite would be left out unseen, and the run end well",
    "eval-interval": "it would wait for engines that the trainer does not have; evaluate published weights in a job of their own",
    "custom-config-path": "it overrides every other flag unseen; write the flags themselves",
}
"""Flags that the framework knows and that cannot work in this system, with the reason."""
PLANNED = frozenset(
    {
        "save",
        "load",
        "save-interval",
        "save-hf",
        "no-save-optim",
        "save-trigger-sentinel",
        "custom-megatron-post-save-hook-path",
        "sequence-parallel",
        "decoder-last-pipeline-num-layers",
        "expert-model-parallel-size",
        "expert-tensor-parallel-size",
        "moe-enable-deepep",
        "moe-flex-dispatcher-backend",
    }
)
"""Flags that follow from the plan also where it leaves them out."""


def trainer_flags(plan: Plan, owned: Flags) -> tuple[str, ...]:
    """The command line: the framework's `owned` flags beside the shared ones, then the recipe and the file's own.

    Raises EnvironmentFault with everything that is wrong in `workload.trainer.flags`, and ValueError for a flag of this
    package's own that the pinned release does not know.
    """
    stack = CATALOG.software[plan.software]
    fixed = {**_owned(plan, stack), **owned}
    free = _recipe(plan, stack)
    if strange := unknown((*fixed, *free), stack):
        raise ValueError(f"{stack.framework} {stack.framework_version} knows no flag {', '.join(strange)}")
    written = plan.workload.trainer.flags
    chosen = free | {name: _values(value) for name, value in written.items()}
    chosen = {name: values for name, values in chosen.items() if written.get(name) is not False}
    findings = tuple(_findings(plan, stack, fixed, chosen))
    if findings:
        raise EnvironmentFault(plan.name, findings)
    return tuple(text for name, values in (*fixed.items(), *chosen.items()) for text in (f"--{name}", *values))


def scratch_directory(plan: Plan) -> str:
    """Where pods of the trainer mount scratch: the parent of the checkpoint directory."""
    return str(PurePosixPath(plan.storage.checkpoint_path).parent)


def _owned(plan: Plan, stack: SoftwareStack) -> Flags:
    run, trainer = plan.workload, plan.workload.trainer
    geometry, model = trainer.geometry, CATALOG.models[run.model]
    flags: Flags = {
        "actor-num-nodes": (str(geometry.nodes),),
        "actor-num-gpus-per-node": (str(geometry.gpus_per_node),),
        "num-gpus-per-node": (str(geometry.gpus_per_node),),
        "tensor-model-parallel-size": (str(geometry.tensor_parallel),),
        "pipeline-model-parallel-size": (str(geometry.pipeline_parallel),),
        "context-parallel-size": (str(geometry.context_parallel),),
        "distributed-timeout-minutes": (str(trainer.save_seconds_max // 60 + TIMEOUT_MARGIN_MINUTES),),
        **shape(model, stack.framework),
    }
    if geometry.tensor_parallel > 1:
        flags["sequence-parallel"] = ()
    if geometry.last_pipeline_layers is not None:
        flags["decoder-last-pipeline-num-layers"] = (str(geometry.last_pipeline_layers),)
    if model.experts:
        flags["expert-model-parallel-size"] = (str(geometry.expert_parallel),)
        flags["expert-tensor-parallel-size"] = (str(geometry.expert_tensor_parallel),)
        flags |= _DISPATCHERS[trainer.dispatcher]
    flags |= {
        "hf-checkpoint": (f"{MODELS_PATH}/{run.files.serving}",),
        "ref-load": (f"{MODELS_PATH}/{run.files.reference}",),
        "num-rollout": (str(run.steps),),
        "n-samples-per-prompt": (str(run.rollouts[0].engine.samples_per_task),),
        "data-source-path": (DATA_SOURCE,),
    }
    if not run.no_checkpoint:
        # One value for both: without a load path a restarted run begins anew and says nothing.
        flags |= {
            "save": (plan.storage.checkpoint_path,),
            "load": (plan.storage.checkpoint_path,),
            "save-interval": (str(run.save_interval),),
            "save-hf": (f"{scratch_directory(plan)}/hf/{{rollout_id}}",),
        }
        if not trainer.save_optimizer:
            flags["no-save-optim"] = ()
    return flags


def _recipe(plan: Plan, stack: SoftwareStack) -> Flags:
    """Upstream's scripts for these models (run_qwen3_30b_a3b, run_qwen3_235b_a22b), without what they do for one GPU
    node or for engines on the trainer's GPUs."""
    model = CATALOG.models[plan.workload.model]
    own = shape(model, stack.framework)
    flags: Flags = {
        "prompt-data": (f"s3://{plan.names.weights_bucket}/{MODELS_PREFIX}prompts.jsonl",),
        "input-key": ("prompt",),
        "label-key": ("label",),
        "apply-chat-template": (),
        "rollout-shuffle": (),
        BATCH_FLAG: (str(plan.workload.batch.groups),),
        STEPS_FLAG: ("1",),
        "rollout-max-response-len": ("8192",),
        "rollout-temperature": ("1.0",),
        "use-dynamic-batch-size": (),
        "max-tokens-per-gpu": ("16384",),
        "balance-data": (),
        "advantage-estimator": ("grpo",),
        "eps-clip": ("0.2",),
        "eps-clip-high": ("0.28",),
        "entropy-coef": ("0.0",),
        # Samples are older than the weights that train on them: without a correction the ratio ignores it.
        "use-tis": (),
        "optimizer": ("adam",),
        "lr": ("1e-6",),
        "lr-decay-style": ("constant",),
        "weight-decay": ("0.1",),
        "adam-beta1": ("0.9",),
        "adam-beta2": ("0.98",),
        "attention-dropout": ("0.0",),
        "hidden-dropout": ("0.0",),
        "accumulate-allreduce-grads-in-fp32": (),
        "attention-softmax-in-fp32": (),
        "recompute-granularity": ("full",),
        "recompute-method": ("uniform",),
        "recompute-num-layers": ("1",),
    }
    if not model.mla:
        flags["attention-backend"] = ("flash",)
    return {name: values for name, values in flags.items() if name not in own}


def _values(written: bool | int | float | str) -> tuple[str, ...]:
    return () if written is True else (str(written),)


def _findings(plan: Plan, stack: SoftwareStack, fixed: Flags, chosen: Flags) -> Iterator[Finding]:
    for name, value in plan.workload.trainer.flags.items():
        key = f"{KEY}.{name}"
        if name in fixed or name in PLANNED:
            yield _fault(key, value, "follows from the rest of the file", "Remove it.")
        elif name.startswith(SGLANG_PREFIX):
            yield _fault(key, value, "configures engines, of which the trainer has none", "Remove it.")
        elif name in REFUSED:
            yield _fault(key, value, REFUSED[name], "Remove it.")
        elif not is_known(name, stack):
            near = ", ".join(nearest(name, stack))
            yield _fault(
                key,
                value,
                f"is no flag of {stack.framework} {stack.framework_version} or its Megatron",
                f"Did you mean {near}?" if near else "Remove it.",
            )
    yield from _batch(plan, chosen)
    corrections = [name for name in ("use-tis", "use-rollout-logprobs") if name in chosen]
    if len(corrections) != 1:
        yield _fault(
            KEY,
            " and ".join(corrections) or "neither use-tis nor use-rollout-logprobs",
            "exactly one of them must correct for samples of older weights",
            "Write use-rollout-logprobs: true with use-tis: false, or neither.",
        )


def _batch(plan: Plan, chosen: Flags) -> Iterator[Finding]:
    """A batch that does not divide is trimmed in the middle of a group, or refused when every node is up."""
    numbers = {}
    for name in (BATCH_FLAG, STEPS_FLAG, *({STALENESS_FLAG} & chosen.keys())):
        text = "".join(chosen.get(name, ()))
        number = count(text)
        if number is None:
            written = plan.workload.trainer.flags.get(name, text)
            yield _fault(f"{KEY}.{name}", written, "is not a count", "Write a number from 1 up.")
            return
        numbers[name] = number
    groups, steps = numbers[BATCH_FLAG], numbers[STEPS_FLAG]
    per_prompt = plan.workload.rollouts[0].engine.samples_per_task
    ranks = plan.workload.trainer.geometry.data_parallel
    if groups % steps or groups // steps * per_prompt % ranks:
        yield _fault(
            f"{KEY}.{BATCH_FLAG}",
            groups,
            f"x {per_prompt} samples in {steps} steps does not divide over {ranks} data-parallel ranks",
            f"Write a multiple of {steps * ranks}.",
        )


def _fault(key: str, value: object, why: str, fix: str) -> Finding:
    return Finding(rule="workload.trainer-flags", key=key, value=value, why=why, fix=fix)
