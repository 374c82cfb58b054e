"""What the pods of one engine tell each other, over HTTP on the agents' port.

    POST /group/report   a follower, every few seconds and at once when it sees a notice:
                         {member, engine, brought, notice, reason} -> {state, target}
    POST /group/drain    a follower that is being stopped: {member} -> {state, target}
    GET  /group/state    {state, target}

`target` is the version that every node of the engine has to bring. Only pods of rollouts reach this port (network policy);
bodies are read strictly all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import urllib3

from moerl_runtime.agent import effects as do
from moerl_runtime.agent.core import View
from moerl_runtime.agent.states import State
from moerl_runtime.faults import InputFault
from moerl_runtime.imds import Notice
from moerl_runtime.protocol import Current
from moerl_runtime.serve import Answer, Request

REPORT_PATH, DRAIN_PATH, STATE_PATH = "/group/report", "/group/drain", "/group/state"
LIVE_PATH, READY_PATH = "/live", "/ready"
LIVE_SECONDS = 60.0
"""A deciding thread that has not turned for so long is stuck."""
SECONDS = 3.0
BODY_BYTES_MAX = 64 * 1024


class LeaderAway(Exception):
    """Nobody listens there, or not as a leader should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Body of a report."""

    member: int
    engine: bool | None
    """Whether the follower's own part of the engine is up; None before its first look."""
    brought: Current | None
    notice: Notice | None = None
    reason: str | None = None
    """Why `brought` is not what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a leader answers."""

    state: State
    target: Current | None


def answer(
    request: Request,
    *,
    group_size: int,
    tell: Callable[[do.Event], None],
    view: Callable[[], View],
    idle_seconds: Callable[[], float],
) -> Answer:
    """The leader's side. `idle_seconds`: since the deciding thread turned."""
    match request.method, request.path:
        case "GET", "/live":
            return Answer(status=200 if idle_seconds() < LIVE_SECONDS else 503)
        case "GET", "/ready":
            return Answer(status=200 if view().ready else 503)
        case "GET", "/group/state":
            return _told(view())
        case "POST", "/group/report":
            try:
                report = read_report(request.body, group_size)
            except InputFault as fault:
                return _refused(fault)
            tell(do.Reported(report.member, report.brought, report.engine, report.reason))
            if report.notice is not None:
                tell(do.Noticed(report.notice, report.member))
            return _told(view())
        case "POST", "/group/drain":
            try:
                member = _member(_object(request.body, {"member"})["member"], group_size)
            except InputFault as fault:
                return _refused(fault)
            tell(do.Stopped(f"pod {member} of the group is being stopped"))
            return _told(view())
        case _:
            return Answer(status=404)


def read_report(body: bytes, group_size: int) -> Report:
    """Raises InputFault for anything but a report of a pod of this group."""
    written = _object(body, {"member", "engine", "brought", "notice", "reason"})
    brought, notice, reason = written["brought"], written["notice"], written["reason"]
    if not isinstance(written["engine"], bool | None) or not isinstance(reason, str | None):
        raise InputFault("report", written, "has fields of another type", "Run all pods of a group from one image.")
    return Report(
        member=_member(written["member"], group_size),
        engine=written["engine"],
        brought=None if brought is None else _current(brought),
        notice=None if notice is None else _notice(notice),
        reason=None if reason is None else reason[:500],
    )


def report(leader_url: str, what: Report) -> Told:
    """The follower's side. Raises LeaderAway."""
    return _ask("POST", leader_url + REPORT_PATH, asdict(what))


def ask_to_drain(leader_url: str, member: int) -> Told:
    return _ask("POST", leader_url + DRAIN_PATH, {"member": member})


def state(leader_url: str) -> Told:
    return _ask("GET", leader_url + STATE_PATH)


def _ask(method: str, url: str, body: Any = None) -> Told:
    try:
        found = urllib3.request(
            method,
            url,
            body=None if body is None else json.dumps(body).encode(),
            timeout=urllib3.Timeout(connect=SECONDS, read=SECONDS),
            retries=False,
        )
        if found.status != 200:
            raise LeaderAway(f"{url}: HTTP {found.status}")
        told = _object(found.data, {"state", "target"})
        target = told["target"]
        return Told(state=State(told["state"]), target=None if target is None else _current(target))
    except (urllib3.exceptions.HTTPError, InputFault, ValueError) as error:
        raise LeaderAway(f"{url}: {type(error).__name__}") from error


def _told(view: View) -> Answer:
    target = None if view.target is None else asdict(view.target)
    return Answer(body=json.dumps({"state": view.state.value, "target": target}).encode())


def _refused(fault: InputFault) -> Answer:
    return Answer(status=400, body=json.dumps({"error": str(fault)}).encode())


def _object(body: bytes, fields: set[str]) -> dict[str, Any]:
    if len(body) > BODY_BYTES_MAX:
        raise InputFault("body", len(body), "is too long", f"Send {sorted(fields)}.")
    try:
        written = json.loads(body)
    except ValueError as error:
        raise InputFault(
            "body", body[:100].decode(errors="replace"), "is no JSON", f"Send {sorted(fields)}."
        ) from error
    if not isinstance(written, dict) or set(written) != fields:
        raise InputFault("body", written, "has other fields", f"Send {sorted(fields)}.")
    return written


def _member(written: Any, group_size: int) -> int:
    if type(written) is not int or not 0 < written < group_size:
        raise InputFault("member", written, "is no follower of this group", f"Send 1 to {group_size - 1}.")
    return written


def _current(written: Any) -> Current:
    kinds = {"run": (str,), "attempt": (int,), "version": (int,), "manifest": (str, type(None))}
    if not isinstance(written, dict) or set(written) != set(kinds):
        raise InputFault("version", written, "names no version", "Send run, attempt, version and manifest.")
    if any(type(written[name]) not in kind for name, kind in kinds.items()):
        raise InputFault("version", written, "has fields of another type", "Send run, attempt, version and manifest.")
    return Current(**written)


def _notice(written: Any) -> Notice:
    if not isinstance(written, dict) or set(written) != {"reason", "text"}:
        raise InputFault("notice", written, "is no notice", "Send reason and text.")
    if written["reason"] not in ("spot", "rebalance") or not isinstance(written["text"], str):
        raise InputFault("notice", written, "is no notice", "Send spot or rebalance, and what metadata says.")
    return Notice(reason=written["reason"], text=written["text"][:500])
