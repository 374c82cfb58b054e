"""Several processes over one fake S3, one call at a time, in an order that the test chooses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from .fake_s3 import Client, FakeS3

Actor = Callable[[Client], object]


def interleave(
    service: FakeS3,
    actors: Mapping[str, Actor],
    choose: Callable[[list[str], Mapping[str, Client]], str],
    look: Callable[[], None],
) -> None:
    """Runs all actors to their end. Before every call `choose` picks, of those that wait, who makes the next one (it sees
    their clients); `look` is called while all of them stand still. Raises what an actor raised."""
    condition = threading.Condition()
    waiting: set[str] = set()
    running = set(actors)
    granted: list[str] = []
    errors: list[BaseException] = []

    def turn(name: str, _operation: str) -> None:
        with condition:
            waiting.add(name)
            condition.notify_all()
            condition.wait_for(lambda: granted == [name])
            granted.clear()
            waiting.discard(name)

    def run(name: str, actor: Actor) -> None:
        try:
            actor(made[name])
        except BaseException as error:  # reported below, in the test's own thread
            errors.append(error)
        finally:
            with condition:
                running.discard(name)
                condition.notify_all()

    made = {name: service.client(before=partial(turn, name)) for name in actors}
    threads = [threading.Thread(target=run, args=item, daemon=True) for item in actors.items()]
    for thread in threads:
        thread.start()
    while True:
        with condition:
            condition.wait_for(lambda: not granted and waiting == running)
            if not running:
                break
            names = sorted(waiting)
        if not errors:
            look()
        with condition:
            granted.append(choose(names, made))
            condition.notify_all()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error
