"""Random lives of a fleet in virtual time: kills, notices, stops, crashing engines, throttled services, slow answers,
duplicate deliveries, clocks that differ, weights that change; and a count of what became of every task.

    python -m tests.images.runtime.agent.chaos --worlds 20

The last line is JSON. A world that does not end, or loses or doubles anything, is an error that names its seed.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from botocore.exceptions import EndpointConnectionError

from moerl_runtime import protocol
from moerl_runtime.agent.effects import Event, Generate, Stopped
from moerl_runtime.agent.states import State
from moerl_runtime.protocol import DeadLetter
from tests.images.runtime.agent.services import Moment, refusal
from tests.images.runtime.agent.simulation import FIRST, QUEUES, SETTINGS, Agent, Engine, World, current

SAMPLES = 4
LIMIT_SECONDS = 48 * 3600.0
KINDS = ("kill", "notice", "stop", "engine crash", "slow", "throttle", "weights", "refused weights", "agent crash")
OUTCOMES = ("completed", "returned", "failed", "crashed", "dead_lettered", "stale", "expired")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One world."""

    seed: int
    groups: int = 200
    agents: int = 4
    events: int = 40
    duplicates: float = 0.02
    poisons: int = 0
    """Groups, the first ones, that end every engine."""
    throttled: float = 0.03
    """Chance that a call of SQS or S3 fails by itself, before or after it took effect."""


class Chaos:
    """One world while it runs. A slot is a place of the fleet: a node is replaced when it is gone."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.world = World(plan.seed, duplicates=plan.duplicates)
        self.chance = random.Random(plan.seed + 1)  # noqa: S311 - a seed has to give the same run
        self.counts: Counter[str] = Counter()
        self.throttling = False
        self.version = 0
        self.bad: set[str] = set()
        self.agents: list[Agent | None] = [None] * plan.agents
        self.draining: set[int] = set()
        self.drained: list[float] = []
        self.engines: list[Engine] = []
        self.dead: set[int] = set()

    def run(self) -> Counter[str]:
        world, plan = self.world, self.plan
        world.point_at(current(0))
        for slot in range(plan.agents):
            self._start(slot, self._engine())
        for group in range(plan.groups):
            world.at(self.chance.uniform(0, 600), lambda group=group: self._issue(group))  # type: ignore[misc]
        for _ in range(plan.events):
            world.at(self.chance.uniform(1, 900), self._event)
        world.at(30.0, self._bury)
        world.at(5.0, self._restart_ended)
        world.run(self._over, limit_seconds=LIMIT_SECONDS)
        return self._counted()

    def _over(self) -> bool:
        if self.world.sqs.queue(QUEUES.tasks).messages or self.counts["issued"] < self.plan.groups:
            return False
        return not self.world.sqs.queue(QUEUES.dead_letters).messages

    def _counted(self) -> Counter[str]:
        stored, announced = self.world.stored(), self.world.announced()
        whole = set(range(SAMPLES))
        groups = range(self.plan.groups)
        # A prompt that the trainer drops without a fault of its own is as lost as any.
        guilty = self.dead & set(range(self.plan.poisons))
        self.counts["lost"] = sum(stored.get(group) != whole for group in groups if group not in guilty)
        self.counts["silent"] = sum(announced.get(group) != whole for group in groups if group not in guilty)
        self.counts["buried"] = len(guilty)
        self.counts["poisons"] = self.plan.poisons
        self.counts["untrue"] = sum(engine.met_half_loaded for engine in self.engines)
        self.counts["foreign"] = len(set(stored) - set(groups))
        self.counts["delivered again"] = self.world.sqs.delivered_again
        self.counts["stored by another first"] = self.world.s3.refused_second
        for agent in self.agents:
            if agent is not None:
                self._count_outcomes(agent)
        return self.counts

    # --- the fleet ---

    def _start(self, slot: int, engine: Engine) -> None:
        self.counts["agents"] += 1
        agent = Agent(
            self.world,
            engine,
            f"agent-{slot}-{self.counts['agents']}",
            interfere=self._interfere,
            latency=lambda: self.chance.expovariate(20),
            skew_seconds=self.chance.uniform(-1e6, 1e6),
            fetch_seconds=self.chance.uniform(1, 60),
            load_seconds=self.chance.uniform(1, 40),
        )
        engine.bad_paths = self.bad
        self.engines.append(engine)
        self.agents[slot] = agent

    def _engine(self) -> Engine:
        engine = Engine(self.world, seconds=self._answer_seconds)
        ask = engine.ask

        def fragile(effect: Generate, answer: Callable[[Event], None]) -> None:
            ask(effect, answer)
            if effect.payload.group < self.plan.poisons:
                self.world.at(self.chance.uniform(0.1, 0.4), lambda: self._end(engine, effect.request_id))

        engine.ask = fragile  # type: ignore[method-assign]
        return engine

    def _end(self, engine: Engine, request_id: str) -> None:
        if request_id in engine.asked:
            self.counts["poisoned engine"] += 1
            engine.die()
            self.world.at(self.chance.uniform(5, 90), engine.restart)

    def _replace(self, slot: int, agent: Agent, *, node: bool) -> None:
        """A new pod on a new node, or a restarted container beside an engine that went on."""
        self._count_outcomes(agent)
        engine = self._engine() if node else agent.engine
        self.agents[slot] = None
        self.world.at(self.chance.uniform(1, 120), lambda: self._start(slot, engine))

    def _count_outcomes(self, agent: Agent) -> None:
        for name in OUTCOMES:
            self.counts[name] += int(agent.metrics.value("moerl_agent_tasks_total", outcome=name))

    def _restart_ended(self) -> None:
        """The kubelet's part: an agent that ended by itself, since its engine could not serve, is started again."""
        for slot, agent in enumerate(self.agents):
            if agent is not None and not agent.alive and slot not in self.draining:
                self.counts["ended broken"] += 1
                self._replace(slot, agent, node=False)
        self.world.at(5.0, self._restart_ended)

    def _event(self) -> None:
        slot = self.chance.randrange(self.plan.agents)
        agent, kind = self.agents[slot], self.chance.choice(KINDS)
        if kind not in ("throttle", "weights", "refused weights") and (agent is None or not agent.alive):
            return
        self.counts[kind] += 1
        if kind == "throttle":
            self.throttling = True
            self.world.at(self.chance.uniform(5, 60), self._calm)
            return
        if kind in ("weights", "refused weights"):
            self.version += 1
            now = current(self.version)
            if kind == "refused weights":
                path = f"/models/{FIRST.number:06d}{self.version:08d}"
                self.bad.add(path)
                self.world.at(self.chance.uniform(30, 200), lambda: self.bad.discard(path))
            self.world.point_at(now)
            return
        assert agent is not None, "the others happen to an agent"
        if kind in ("kill", "agent crash"):
            agent.kill()
            self.draining.discard(slot)
            self._replace(slot, agent, node=kind == "kill")
        elif kind in ("notice", "stop"):
            self._drain(slot, agent, kind)
        elif kind == "engine crash":
            agent.engine.die()
            self.world.at(self.chance.uniform(5, 90), agent.engine.restart)
        else:
            agent.engine.seconds = lambda: self.chance.uniform(60, 300)

    def _drain(self, slot: int, agent: Agent, kind: str) -> None:
        begun = self.world.now
        self.draining.add(slot)
        agent.notice() if kind == "notice" else agent.tell(Stopped())

        def look() -> None:
            if agent.alive and agent.core.state is not State.DONE:
                assert self.world.now - begun < SETTINGS.drain_seconds, "a drain took longer than its budget"
                self.world.at(1.0, look)
            elif self.agents[slot] is agent:
                self.draining.discard(slot)
                self.drained.append((agent.ended_seconds or self.world.now) - begun)
                self._replace(slot, agent, node=True)

        look()

    def _answer_seconds(self) -> float:
        return self.chance.choice((0.5, 2.0, 5.0, 20.0, 90.0))

    def _calm(self) -> None:
        self.throttling = False

    def _interfere(self, name: str, moment: Moment) -> None:
        chance = 0.4 if self.throttling else self.plan.throttled
        if self.chance.random() < chance / 2:
            self.counts["failed calls"] += 1
            if self.chance.random() < 0.5:
                raise refusal("SlowDown" if name in ("put", "get", "list") else "RequestThrottled", 503)
            raise EndpointConnectionError(endpoint_url=f"{name}, {moment}")

    # --- the trainer's part ---

    def _issue(self, group: int) -> None:
        self.counts["issued"] += 1
        # Weights that engines refuse are never what a group needs: the trainer would not get any.
        self.world.issue(group, samples=SAMPLES)

    def _bury(self) -> None:
        """The trainer drops the prompt of a dead letter for good."""
        letters = self.world.sqs.queue(QUEUES.dead_letters).messages
        for message in letters.values():
            self.dead.add(protocol.decode(DeadLetter, message.body).group)
        letters.clear()
        self.world.at(30.0, self._bury)


def run(worlds: int, first: Plan) -> Counter[str]:
    """Several worlds, each with the next seed."""
    total: Counter[str] = Counter()
    for number in range(worlds):
        chaos = Chaos(replace(first, seed=first.seed + number))
        total += chaos.run()
        total["worlds"] += 1
    for name in ("lost", "silent", "foreign", "untrue"):
        total.setdefault(name, 0)
    return total


def summary(total: Counter[str]) -> str:
    interrupted = total["kill"] + total["agent crash"] + total["notice"] + total["stop"]
    return (
        f"runtime: {total['issued']} tasks in {total['worlds']} worlds, {interrupted} agents interrupted "
        f"({total['kill'] + total['agent crash']} killed), {total['engine crash']} engine crashes, "
        f"{total['poisoned engine']} more by {total['poisons']} tasks of which {total['buried']} are buried, "
        f"{total['failed calls']} failed calls, {total['returned']} tasks returned, "
        f"{total['delivered again']} delivered again, {total['stored by another first']} samples stored by another first, "
        f"lost = {total['lost'] + total['silent']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--poisons", type=int, default=2, help="groups of each world that end engines (default: 2)")
    arguments = parser.parse_args()
    total = run(arguments.worlds, Plan(seed=arguments.seed, groups=arguments.groups, poisons=arguments.poisons))
    print(summary(total))
    print(json.dumps(dict(sorted(total.items()))))
    raise SystemExit(1 if total["lost"] + total["silent"] + total["foreign"] + total["untrue"] else 0)


if __name__ == "__main__":
    main()
