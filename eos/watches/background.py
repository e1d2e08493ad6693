"""Background: a question that a watch asks beside the loop, which goes on meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def in_background(question: Callable[[], T], name: str) -> Future[T]:
    """Ask in a thread of its own: confluent-kafka's constructors and questions fail half-way when a signal comes into them."""
    answer: Future[T] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:  # noqa: BLE001 - it is asked again
            answer.set_exception(error)

    threading.Thread(target=ask, name=name, daemon=True).start()
    return answer
