"""When memory is given back: once after many have left, not before and not for a few."""

from workspaces.proxy.memory import Crowd


def test_it_is_time_once_after_a_crowd_and_again_after_the_next() -> None:
    crowd = Crowd()

    def come_and_go(number: int, *, stay: int = 0) -> None:
        for _ in range(number):
            crowd.__enter__()
        for _ in range(number - stay):
            crowd.__exit__(None, None, None)

    assert not crowd.has_left()
    come_and_go(499)
    assert not crowd.has_left()
    come_and_go(550, stay=20)
    assert crowd.has_left()
    assert not crowd.has_left()
    assert crowd.now == 20
    come_and_go(500)
    assert crowd.has_left()


def test_a_failed_call_is_no_longer_served() -> None:
    crowd = Crowd()
    try:
        with crowd:
            raise ValueError
    except ValueError:
        assert (crowd.now, crowd.most) == (0, 1)
