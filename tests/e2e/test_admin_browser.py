"""The operators' desk in a real browser: finding and mending what is broken, acting on many, inviting, limits, catalogue, orphans."""

import re
from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.conftest import card, live, observe
from tests.e2e.looking import tab_to
from tests.integration import admin_world as world
from workspaces.models import AuditEvent, Image, Installation, Orphan, UserProfile, Workspace

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_an_operator_recovers_with_the_keyboard_alone_and_the_owner_sees_it(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    lost = world.broken(people["mina"], "lost", archive_key="a/b/home.tar.zst", archive_size=1024, archived_at="2026-02-03T04:05Z")
    world.broken(people["mina"], "pull", "ImagePullFailed")
    owner = sign_in("mina")
    live(owner)
    expect(card(owner, lost)).to_contain_text("An operator has to look at it.")
    page = sign_in("root")
    page.goto("/admin/overview/")
    tab_to(page, "Broken")
    page.keyboard.press("Enter")
    page.wait_for_url("**/workspace/?trouble=person")
    tab_to(page, "Action:")
    page.keyboard.type("Recover")
    # The boxes stand below the actions: choose all, then go back to the button.
    tab_to(page, "Select all")
    page.keyboard.press("Space")
    for _step in range(20):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.name") == "index":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Recover these workspaces?")
    expect(page.get_by_text("2026-02-03 04:05")).to_be_visible()
    tab_to(page, "reobserve")
    page.keyboard.press("ArrowDown")
    tab_to(page, "understood")
    page.keyboard.press("Space")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    results = page.locator(".ch-results")
    expect(results).to_contain_text("granted")
    expect(results).to_contain_text("recovery_refused")
    lost.refresh_from_db()
    assert lost.recovery_strategy == "restore_archive"
    assert AuditEvent.objects.get(action="recover").actor_name == "root"
    observe(lost, phase="ARCHIVED", error_reason=None, error_info=None, recovery_strategy=None, operation="RESTORING")
    expect(card(owner, lost).locator(".state")).to_have_text("Restoring")
    expect(owner.locator("#announcer")).to_contain_text("lost: Restoring")


def test_an_operator_deletes_from_the_page_of_one_workspace_after_reading_what_is_lost(
    people: dict[str, User], sign_in: Callable[..., Page]
) -> None:
    made = world.workspace(people["mina"], "old thing")
    page = sign_in("root")
    page.goto(f"/admin/workspaces/workspace/{made.pk}/change/")
    page.get_by_role("button", name="Delete…").click()
    expect(page.get_by_text("Nobody can bring them back")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text("Tick the box")
    page.check("input[name=understood]")
    page.get_by_role("button", name="Delete").click()
    expect(page.locator(".ch-results")).to_contain_text("granted")
    assert Workspace.objects.get(pk=made.pk).deleted_at is not None


def test_an_operator_finds_by_phase_and_owner_and_acts_on_many_with_a_result_for_each(
    people: dict[str, User], sign_in: Callable[..., Page]
) -> None:
    for name in ("one", "two"):
        world.workspace(people["mina"], name, phase="RUNNING", desired_state="RUNNING")
    world.workspace(people["mina"], "asleep", phase="STANDBY")
    world.workspace(people["root"], "own", phase="RUNNING", desired_state="RUNNING")
    page = sign_in("root")

    def ask(action: str) -> None:
        page.goto("/admin/workspaces/workspace/")
        page.locator("#changelist-filter a", has_text="RUNNING").first.click()
        page.get_by_label("User name").fill("mina")
        page.get_by_label("User name").press("Enter")
        expect(page.locator("#result_list tbody tr")).to_have_count(2)
        page.check("#action-toggle")
        page.select_option("select[name=action]", action)
        page.click("button[name=index]")

    ask("reobserve")
    expect(page.locator(".ch-results tbody tr")).to_have_count(2)
    ask("stop")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Stop")
    page.click("button.ch-button--main")
    expect(page.locator(".ch-results")).to_contain_text("granted")
    wanted = dict(Workspace.objects.values_list("name", "desired_state"))
    assert wanted == {"one": "STANDBY", "two": "STANDBY", "asleep": "STANDBY", "own": "RUNNING"}
    ask("archive")
    page.click("button.ch-button--main")
    expect(page.locator(".ch-results")).to_contain_text("granted")
    assert set(Workspace.objects.filter(name__in=["one", "two"]).values_list("desired_state", flat=True)) == {"ARCHIVED"}


def test_an_operator_invites_a_user_with_limits_who_chooses_a_password_and_enters(
    people: dict[str, User], sign_in: Callable[..., Page], open_browser: Callable[..., BrowserContext]
) -> None:
    page = sign_in("root")
    page.goto("/admin/auth/user/add/")
    page.get_by_label("Username").fill("guest")
    page.get_by_role("button", name="Save", exact=True).click()
    link = page.locator(".ch-copy").inner_text()
    page.get_by_role("spinbutton", name="Most running").fill("1")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url("**/admin/auth/user/")
    guest = open_browser().new_page()
    guest.goto(link)
    expect(guest.get_by_role("heading", level=1)).to_have_text("Welcome, guest")
    guest.get_by_label("New password", exact=True).fill("12345678")
    guest.get_by_label("New password confirmation").fill("12345678")
    guest.get_by_role("button", name="Set the password and enter").click()
    expect(guest.locator(".errorlist").first).to_contain_text("too common")
    guest.get_by_label("New password", exact=True).fill("a long phrase of my own")
    guest.get_by_label("New password confirmation").fill("a long phrase of my own")
    guest.get_by_role("button", name="Set the password and enter").click()
    expect(guest.locator("#usage")).to_contain_text("0 of 1")
    again = open_browser().new_page()
    again.goto(link)
    expect(again.get_by_role("heading", level=1)).to_have_text("This link does not work any more")
    assert UserProfile.objects.get(user__username="guest").max_running == 1


def test_an_image_is_checked_before_it_is_offered_to_users(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    Installation.objects.update(runtime="docker")
    page = sign_in("root")
    page.goto("/admin/workspaces/image/add/")
    page.get_by_label("Short name").fill("go")
    page.get_by_label("Title").fill("Go")
    page.get_by_label("docker").check()
    page.get_by_label("Image reference").fill("--privileged evil")
    page.get_by_label("Port").fill("70000")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator(".field-ref .errorlist")).to_be_visible()
    expect(page.locator(".field-port .errorlist")).to_be_visible()
    page.get_by_label("Image reference").fill("example/go:1")
    page.get_by_label("Port").fill("8080")
    page.get_by_role("button", name="Save", exact=True).click()
    page.wait_for_url("**/admin/workspaces/image/")
    assert Image.objects.get(name="go").ref == "example/go:1"
    owner = sign_in("mina")
    owner.click(".toolbar [data-dialog=create]")
    expect(owner.locator("dialog").get_by_label("Go", exact=False).first).to_be_visible()


def test_an_operator_reads_the_overview_and_confirms_an_orphan(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    world.realistic(people["mina"])
    page = sign_in("root")
    page.goto("/admin/overview/")
    expect(page.get_by_role("region", name="Loops and their leaders")).to_contain_text("reconcile")
    expect(page.get_by_role("region", name="Circuit breakers")).to_contain_text("connection refused")
    expect(page.get_by_role("region", name=re.compile("Stuck"))).to_contain_text("stuck 0")
    page.get_by_role("button", name="Confirm removal of").click()
    expect(page.locator(".messagelist")).to_contain_text("goes with the next clean-up")
    assert Orphan.objects.get(known=False).confirmed_by == people["root"]
