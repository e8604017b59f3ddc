"""Asks many questions of slow systems side by side and never waits longer than told.

Owns a few daemon threads. A question that hangs keeps its thread until it ends; who asked gets "no answer" in time.
"""

import queue
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

K = TypeVar("K", bound=Hashable)

THREADS = 8


class NoAnswerError(Exception):
    """It was not answered in time, or not asked at all."""


class Askers:
    """Threads are started when first needed, so that an idle one costs nothing."""

    def __init__(self, threads: int = THREADS) -> None:
        self._limit = threads
        self._questions: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._busy = 0
        self._hanging: set[Hashable] = set()
        self._lock = threading.Lock()

    def ask(self, questions: Mapping[K, Callable[[], Any]], seconds: float) -> dict[K, Any]:
        """Every question's answer, or the exception it raised, or NoAnswerError when the time was up first.

        What was asked before and still hangs is not asked again: one container that hangs must not take every thread.
        """
        with self._lock:
            hanging = self._hanging & questions.keys()
        unanswered = {key: NoAnswerError("no answer to an earlier question") for key in questions if key in hanging}
        return {**self._ask({key: question for key, question in questions.items() if key not in hanging}, seconds), **unanswered}

    def _ask(self, questions: Mapping[K, Callable[[], Any]], seconds: float) -> dict[K, Any]:
        if not questions:
            return {}
        answers: dict[K, Any] = {}
        arrived: queue.SimpleQueue[tuple[K, Any]] = queue.SimpleQueue()
        gave_up = threading.Event()
        for key, question in questions.items():
            self._questions.put(self._task(key, question, arrived, gave_up))
        self._grow(len(questions))
        deadline = time.monotonic() + seconds
        while len(answers) < len(questions):
            try:
                key, answer = arrived.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                break
            answers[key] = answer
        gave_up.set()
        return {key: answers.get(key, NoAnswerError("no answer in time")) for key in questions}

    def close(self) -> None:
        """Let the threads end when they are done with what they do."""
        with self._lock:
            for _ in self._threads:
                self._questions.put(None)
            self._threads.clear()

    def _grow(self, waiting: int) -> None:
        with self._lock:
            while len(self._threads) < min(self._limit, waiting + self._busy):
                thread = threading.Thread(target=self._work, name="observer", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _work(self) -> None:
        while (task := self._questions.get()) is not None:
            with self._lock:
                self._busy += 1
            try:
                task()
            finally:
                with self._lock:
                    self._busy -= 1

    def _task(
        self, key: K, question: Callable[[], Any], arrived: "queue.SimpleQueue[tuple[K, Any]]", gave_up: threading.Event
    ) -> Callable[[], None]:
        def run() -> None:
            if gave_up.is_set():
                return
            with self._lock:
                self._hanging.add(key)
            try:
                answer = question()
            except Exception as error:
                answer = error
            with self._lock:
                self._hanging.discard(key)
            arrived.put((key, answer))

        return run
