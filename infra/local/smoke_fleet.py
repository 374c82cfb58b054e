"""Processes of the smoke RL job: started, interrupted, watched, and gone at the end."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from infra.config.plan import Plan
from infra.local import readback, smoke_weights
from infra.local.processes import LOOPBACK, end_group, free_port, tail
from infra.local.smoke_report import Course, Form, Loaded, Record, Step
from moerl_runtime import protocol, serve
from moerl_runtime.checkpoint import resolve
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.imds import SPOT_PATH
from moerl_runtime.serve import Answer, Request
from moerl_runtime.smoke import job

WORKERS = 3
RUN = f"{job.RUN_PREFIX}demo"
DEADLINE_SECONDS = 300.0
"""Of a busy machine; two idle cores take less than half of it."""
LOOK_SECONDS = 0.25
SCRAPE_SECONDS = 1.0
REPLACE_SECONDS = 2.0
"""Until a worker that is gone is replaced, as a fleet would."""
END_SECONDS = 30.0
"""For workers to end by themselves after the run."""
TELL_STEPS = 10
LOG_LINES = 25
ENGINE_STEP_SECONDS = 0.15
"""An answer takes longer than a training step, as in a real run."""


class SmokeError(RuntimeError):
    """The job did not do what it should."""


@dataclass(slots=True)
class Process:
    """A process group of the job."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    metrics_url: str
    series: dict[str, float] = field(default_factory=dict)
    """Last values seen; they outlive a process that is killed."""
    killed: bool = False
    replaced: bool = False

    @property
    def running(self) -> bool:
        return self.popen.poll() is None


class Fleet:
    """The processes, the notice that one of them gets, and what is seen of them."""

    def __init__(
        self, plan: Plan, out: Path, variables: Mapping[str, str], say: Callable[[str], None], course: Course
    ) -> None:
        self._plan, self._out, self._say, self._course = plan, out, say, course
        self._variables = {**variables, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "MOERL_RUN": RUN}
        self._plan_path = out / "plan.json"
        self._pool = plan.workload.rollouts[0].pool
        self._step_log = out / "steps.jsonl"
        self._noticed: set[str] = set()
        self._imds: dict[str, str] = {}
        self._open = ExitStack()
        self.workers: list[Process] = []
        self.trainers: list[Process] = []
        self.record = Record(began=time.monotonic())
        self._unix_began = time.time()
        self._gone_at: dict[str, float] = {}
        self._scraped = 0.0
        self.resumed_from: tuple[int, int] | None = None
        """(step of the checkpoint, last step that the killed attempt had done)."""
        self._s3 = readback.session(variables).client("s3", endpoint_url=variables["AWS_ENDPOINT_URL"])
        self._told = -1
        """Last step of which a line was said."""
        self._resume_told = False

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Whatever happens, every process that was started is gone afterwards."""
        with self._open:
            try:
                yield
            finally:
                for process in (*self.workers, *self.trainers):
                    end_group(process.popen.pid)
                    process.popen.wait()

    def start(self) -> None:
        self._plan_path.write_text(json.dumps(self._plan.document()), encoding="utf-8")
        self._start_trainer()
        for number in range(WORKERS):
            self._start_worker(f"worker-{number}")

    def steer(self) -> None:
        """Runs the job to its end, with the interruptions on the way."""
        due: list[tuple[int, Callable[[], bool]]] = [
            (self._course.notice, self._give_notice),
            (self._course.worker, self._kill_worker),
            (self._course.trainer, self._kill_trainer),
        ]
        while self.trainers[-1].running:
            self._check_time()
            self._scrape()
            self._replace()
            done = self.steps()
            self._tell(done)
            if due and done and done[-1].step >= due[0][0] and due[0][1]():
                due.pop(0)
            time.sleep(LOOK_SECONDS)
        if self.trainers[-1].popen.returncode:
            raise self._failed(self.trainers[-1])
        if due:
            raise SmokeError(f"the run ended before every interruption: {len(due)} are left")
        self._note("run complete")
        deadline = time.monotonic() + END_SECONDS
        while any(worker.running for worker in self.workers):
            self._check_time()
            self._scrape()
            if time.monotonic() > deadline:
                raise SmokeError("a worker did not end with the run")
            time.sleep(LOOK_SECONDS)
        for worker in self.workers:
            if not worker.killed and worker.popen.returncode:
                raise self._failed(worker)

    def steps(self) -> list[Step]:
        """Lines of the step log, in the order of their time."""
        if not self._step_log.is_file():
            return []
        rows = []
        for line in self._step_log.read_text(encoding="utf-8").splitlines(keepends=True):
            # The last line may still be in the writing.
            if line.endswith("\n"):
                rows.append(json.loads(line))
        newest = max((row["attempt"] for row in rows), default=0)
        resumed = self.resumed_from[0] if self.resumed_from else None
        return [
            Step(
                at_seconds=row["unix_seconds"] - self._unix_began,
                attempt=row["attempt"],
                step=row["step"],
                reward=row["reward"],
                samples=row["samples"],
                groups=tuple(row["groups"]),
                weights=tuple(Form(**form) for form in row["weights"]),
                kept=row["attempt"] == newest or resumed is None or row["step"] <= resumed,
            )
            for row in rows
        ]

    def series(self) -> dict[str, float]:
        """Counters of all processes, added up over what was last seen of each."""
        total: dict[str, float] = {}
        for process in (*self.workers, *self.trainers):
            for name, value in process.series.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def last_checkpoint(self) -> resolve.Checkpoint:
        found = self._newest()
        if found is None:
            raise SmokeError("the run left no complete checkpoint")
        return found

    def loaded(self) -> Loaded:
        """What engines loaded that were not there from the beginning; to be asked after the run."""
        late = [
            smoke_weights.brought(worker.name, worker.log.read_text(encoding="utf-8", errors="replace"))
            for worker in self.workers[WORKERS:]
        ]
        last, names = self.steps()[-1], self._plan.names
        try:
            directory, at_end = smoke_weights.join(
                self._s3,
                names.weights_bucket,
                self._plan.storage.weights_prefix,
                protocol.Attempt(run=RUN, number=last.attempt),
                last.weights[-1].version,
                base=self._out / self.workers[0].name / job.SERVING,
                models=self._out / "at-end",
            )
        except RuntimeFault as fault:
            raise SmokeError(f"a node that joins at the end: {fault}") from fault
        return Loaded(
            late=tuple(versions[0] for versions in late if versions),
            at_end=at_end,
            end_is_export=smoke_weights.is_export(self._s3, names.checkpoint_bucket, self.last_checkpoint(), directory),
        )

    # --- interruptions: each says whether it happened, and is tried again at the next look otherwise

    def _give_notice(self) -> bool:
        self._noticed.add(self.workers[0].name)
        self._note(f"Spot notice to {self.workers[0].name}")
        return True

    def _kill_worker(self) -> bool:
        self._scrape()
        self.workers[1].killed = True
        end_group(self.workers[1].popen.pid)
        self._note(f"{self.workers[1].name} killed")
        return True

    def _kill_trainer(self) -> bool:
        if self._newest() is None:
            # An uploader without a turn on a busy machine: there is nothing to resume from yet.
            return False
        trainer = self.trainers[-1]
        trainer.killed = True
        end_group(trainer.popen.pid)
        trainer.popen.wait()
        found, last = self.last_checkpoint(), self.steps()[-1].step
        self._note(f"trainer killed after step {last}")
        self._start_trainer()
        self.resumed_from = (found.step, last)
        return True

    def _replace(self) -> None:
        for worker in list(self.workers):
            if worker.running or worker.replaced:
                continue
            if not worker.killed and worker.popen.returncode:
                raise self._failed(worker)
            if not worker.killed and worker.name not in self._noticed:
                # It saw the run's end before the trainer's process was gone.
                continue
            gone = self._gone_at.setdefault(worker.name, time.monotonic())
            if time.monotonic() - gone >= REPLACE_SECONDS:
                worker.replaced = True
                if not worker.killed:
                    self._note(f"{worker.name} drained")
                self._start_worker(f"worker-{len(self.workers)}")

    # --- processes

    def _start_trainer(self) -> None:
        port = free_port()
        self.trainers.append(
            self._spawn(
                f"trainer-{len(self.trainers)}",
                port,
                ["smoke", "trainer", "--plan", str(self._plan_path), "--run", RUN, "--holder", "trainer"],
                # The second start is another pod: its scratch is empty, so it resumes from the bucket alone.
                ["--scratch", str(self._out / f"scratch-{len(self.trainers)}"), "--listen", f"{LOOPBACK}:{port}"],
                ["--step-log", str(self._step_log), "--steps", str(self._course.steps)],
            )
        )

    def _start_worker(self, name: str) -> None:
        agent, engine, metrics = free_port(), free_port(), free_port()
        self._imds[name] = self._open.enter_context(
            serve.serving(f"{LOOPBACK}:0", lambda request: metadata(request, name in self._noticed))
        )
        self.workers.append(
            self._spawn(
                name,
                metrics,
                ["smoke", "rollout", "--plan", str(self._plan_path), "--pool", self._pool, "--imds", self._imds[name]],
                ["--models", str(self._out / name), "--listen", f"{LOOPBACK}:{agent}"],
                ["--engine-listen", f"{LOOPBACK}:{engine}", "--metrics-port", str(metrics)],
                ["--seed", str(len(self.workers)), "--step-seconds", str(ENGINE_STEP_SECONDS)],
            )
        )

    def _spawn(self, name: str, metrics_port: int, *arguments: Sequence[str]) -> Process:
        log = self._out / f"{name}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(  # noqa: S603 - argument lists
                [sys.executable, "-m", "moerl_runtime", *(word for part in arguments for word in part)],
                env={**self._variables, "HOSTNAME": name},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Process(name, popen, log, f"http://{LOOPBACK}:{metrics_port}/metrics")

    # --- what is seen

    def _newest(self) -> resolve.Checkpoint | None:
        storage = self._plan.storage
        return resolve.resolve(self._s3, self._plan.names.checkpoint_bucket, storage.checkpoint_prefix, RUN)

    def _scrape(self) -> None:
        now = time.monotonic()
        if now - self._scraped < SCRAPE_SECONDS:
            return
        self._scraped = now
        for process in (*self.workers, *self.trainers):
            if process.running:
                process.series = scrape(process.metrics_url) or process.series
        made = {worker.name: worker.series.get("moerl_agent_samples_total", 0.0) for worker in self.workers}
        self.record.samples.append((now - self.record.began, made))

    def _note(self, what: str) -> None:
        seconds = time.monotonic() - self.record.began
        self.record.events.append((seconds, what))
        self._say(f"  {seconds:5.1f} s  {what}")

    def _tell(self, done: Sequence[Step]) -> None:
        if self.resumed_from and not self._resume_told and done[-1].attempt != done[0].attempt:
            self._resume_told = True
            self._note(f"resumed after step {self.resumed_from[0]}")
        if done and (done[-1].step // TELL_STEPS != self._told // TELL_STEPS or self._told < 0):
            self._told = done[-1].step
            seconds = time.monotonic() - self.record.began
            self._say(f"  {seconds:5.1f} s  step {done[-1].step}: reward {done[-1].reward:.2f}")

    def _check_time(self) -> None:
        if time.monotonic() - self.record.began > DEADLINE_SECONDS:
            done = self.steps()
            last = done[-1].step if done else "none"
            newest = self._newest()
            raise SmokeError(
                f"not done within {DEADLINE_SECONDS:g} s; last step {last}, last checkpoint"
                f" {'none' if newest is None else newest.step}, see {self._out}"
            )

    def _failed(self, process: Process) -> SmokeError:
        end = tail(process.log, LOG_LINES)
        return SmokeError(f"{process.name} ended with {process.popen.returncode}; {process.log}:\n{end}")


def metadata(request: Request, noticed: bool) -> Answer:
    """Instance metadata of a node, with a Spot notice or none."""
    if request.method == "PUT" and request.path == "/latest/api/token":
        return Answer(body=b"token", content_type="text/plain")
    if request.method == "GET" and request.path == SPOT_PATH and noticed:
        return Answer(body=b'{"action": "terminate", "time": "2026-01-01T00:00:00Z"}')
    return Answer(status=404)


def scrape(url: str) -> dict[str, float] | None:
    """Series of a /metrics by name and labels; None while nobody answers."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=1) as reply:
            text = reply.read().decode()
    except (urllib.error.URLError, OSError):
        return None
    return {
        match[1]: float(match[2])
        for line in text.splitlines()
        if (match := re.fullmatch(r"(moerl_[a-z_]+(?:\{[^}]*\})?) (\S+)", line))
    }
