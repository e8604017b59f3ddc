"""Questions asked side by side: answers, exceptions, and those that hang."""

import threading

from coordinator.asking import Askers, NoAnswerError


def test_every_question_gets_its_answer_or_its_exception() -> None:
    askers = Askers()
    answers = askers.ask({"seven": lambda: 7, "broken": lambda: int("x")}, 10)
    assert answers["seven"] == 7
    assert isinstance(answers["broken"], ValueError)
    assert askers.ask({}, 10) == {}
    askers.close()


def test_what_hangs_is_not_asked_again_and_takes_one_thread_only() -> None:
    askers, release, asked = Askers(threads=2), threading.Event(), []

    def hang() -> int:
        asked.append(1)
        release.wait(30)
        return 1

    assert isinstance(askers.ask({"stuck": hang}, 0.2)["stuck"], NoAnswerError)
    for _ in range(3):
        answers = askers.ask({"stuck": hang, "other": lambda: 5}, 20)
        assert isinstance(answers["stuck"], NoAnswerError)
        assert answers["other"] == 5
    assert len(asked) == 1
    release.set()
    while isinstance(answer := askers.ask({"stuck": hang}, 10)["stuck"], NoAnswerError):
        pass
    assert answer == 1
    askers.close()
