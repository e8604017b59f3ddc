"""The dashboard in a real browser: every flow, live updates in two browsers, reconnects, the keyboard, no scripts at all."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.conftest import PASSWORD, card, live, observe
from tests.e2e.looking import tab_to
from tests.e2e.scenes import MIB, fill
from workspaces.models import Attempt, Image, Installation, UserSession, Workspace
from workspaces.phases import DesiredState, Operation, Phase

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def make(owner: User, name: str, **columns: Any) -> Workspace:
    columns.setdefault("desired_state", columns["phase"])
    return Workspace.objects.create(owner=owner, name=name, image=Image.objects.all()[0], **columns)


def test_create_edit_stop_and_delete_with_the_mouse(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    page = sign_in("mina")
    live(page)
    page.click("text=Create a workspace")
    dialog = page.locator("dialog#create")
    dialog.get_by_label("Name", exact=True).fill("payments")
    dialog.get_by_label("Description").fill("API")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_text("“payments” was created.")).to_be_visible()
    workspace = Workspace.objects.get()
    assert workspace.desired_state == DesiredState.RUNNING
    observe(workspace, phase=Phase.RUNNING, phase_changed_at=timezone.now())
    expect(card(page, workspace).locator(".state")).to_have_text("Running")
    expect(page.locator("#announcer")).to_contain_text("payments: Running")

    card(page, workspace).locator("summary").click()
    card(page, workspace).get_by_role("button", name="Keep awake for 4 hours").click()
    expect(card(page, workspace)).to_contain_text("Kept awake")
    card(page, workspace).get_by_role("button", name="Stop").click()
    expect(card(page, workspace)).to_contain_text("Asked to stop")
    # Somebody changes their mind while it stops: the wish waits its turn, and can be taken back.
    observe(workspace, operation=Operation.STOPPING, op_started_at=timezone.now())
    card(page, workspace).get_by_role("button", name="Start when done").click()
    expect(card(page, workspace)).to_contain_text("Then it starts.")
    card(page, workspace).get_by_role("button", name="Stop when done").click()
    expect(card(page, workspace)).not_to_contain_text("Then it starts.")
    observe(workspace, operation=Operation.NONE, phase=Phase.STANDBY)
    expect(card(page, workspace).locator(".state")).to_have_text("Standby")

    card(page, workspace).locator("summary").click()
    card(page, workspace).get_by_role("link", name="Name, notes and idle times").click()
    page.get_by_label("Name").fill("payments-v2")
    page.get_by_label("Notes").fill("call Ada first")
    page.get_by_label("Stop when unused for").select_option(label="3 h")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_have_text("payments-v2")
    expect(page.get_by_text("call Ada first")).to_be_visible()

    page.get_by_role("link", name="Delete…").click()
    expect(page.get_by_text("There is no undo")).to_be_visible()
    page.get_by_label("Type the workspace's name to confirm").fill("payments-v2")
    page.get_by_role("button", name="Delete for good").click()
    expect(page.get_by_text("is being deleted")).to_be_visible()
    workspace.refresh_from_db()
    assert workspace.deleted_at is not None
    observe(workspace, phase=Phase.DELETED)
    expect(card(page, workspace)).to_have_count(0)
    expect(page.get_by_text("Your first workspace")).to_be_visible()


def test_another_image_can_be_chosen_and_started_later(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    Image.objects.create(name="go", title="Go", description="Compiler and tools", ref="example/go:1", runtimes=["docker"], memory_mb=4096)
    Installation.objects.update(runtime="docker")
    page = sign_in("mina")
    page.click(".toolbar [data-dialog=create]")
    dialog = page.locator("dialog#create")
    expect(dialog.locator(".choice", has_text="Compiler and tools")).to_contain_text("4096 MB memory")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog).to_be_visible()  # the browser asks for the name
    dialog.get_by_label("Name", exact=True).fill("later")
    dialog.get_by_role("radio", name="Go Compiler and tools").check()
    dialog.get_by_label("Start it right away").uncheck()
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_text("“later” was created.")).to_be_visible()
    workspace = Workspace.objects.get()
    assert (workspace.image.name, workspace.desired_state) == ("go", DesiredState.STANDBY)


def test_a_full_house_says_who_is_in_it_and_lets_one_go(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    running = [make(people["mina"], name, phase=Phase.RUNNING) for name in ("one", "two")]
    third = make(people["mina"], "three", phase=Phase.STANDBY)
    page = sign_in("mina")
    live(page)
    card(page, third).get_by_role("button", name="Start").click()
    expect(page.locator("#messages")).to_contain_text("“one”")
    expect(page.locator("#messages")).to_contain_text("“two”")
    page.goto(f"/w/{third.pk}/")
    expect(page.get_by_role("heading", level=1)).to_have_text("No running place is free")
    page.get_by_role("button", name="Stop one").click()
    running[0].refresh_from_db()
    assert running[0].desired_state == DesiredState.STANDBY
    expect(page.get_by_role("heading", level=1)).not_to_have_text("No running place is free")
    third.refresh_from_db()
    assert third.desired_state == DesiredState.RUNNING


def test_two_browsers_show_the_same_change(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    workspace = make(people["mina"], "shared", phase=Phase.STANDBY)
    one, two = sign_in("mina"), sign_in("mina", viewport={"width": 390, "height": 800})
    live(one)
    live(two)
    card(one, workspace).get_by_role("button", name="Start").click()
    expect(card(two, workspace)).to_contain_text("Asked to run")
    observe(workspace, operation=Operation.STARTING, op_started_at=timezone.now())
    for page in (one, two):
        expect(card(page, workspace).locator(".state")).to_have_text("Starting")
        expect(page.locator("#usage")).to_contain_text("1 of 2")
    other = make(people["mina"], "made elsewhere", phase=Phase.STANDBY)
    for page in (one, two):
        expect(card(page, other)).to_be_visible()


def test_progress_moves_while_it_is_archived(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    workspace = fill(people["mina"], now=timezone.now())["archiving"]
    page = sign_in("mina")
    live(page)
    bar = card(page, workspace).locator("progress")
    expect(bar).to_have_attribute("value", str(612 * MIB))
    Attempt.objects.filter(workspace=workspace).update(bytes_done=900 * MIB)
    expect(bar).to_have_attribute("value", str(900 * MIB))
    page.goto(f"/workspaces/{workspace.pk}/")
    live(page)
    Attempt.objects.filter(workspace=workspace).update(bytes_done=1200 * MIB)
    expect(page.locator("#hero progress")).to_have_attribute("value", str(1200 * MIB))


@pytest.mark.parametrize(
    ("operation", "action", "step", "words"),
    [(Operation.RESTORING, "restore", "restore", "Unpacking"), (Operation.STARTING, "start", "image", "Pulling the image")],
)
def test_bytes_and_time_left_of_a_restore_and_of_an_image_pull(
    operation: Operation, action: str, step: str, words: str, people: dict[str, User], sign_in: Callable[..., Page]
) -> None:
    workspace = make(people["mina"], "moving", phase=Phase.STANDBY, desired_state=DesiredState.RUNNING, operation=operation)
    run = Attempt.objects.create(workspace=workspace, operation=operation, op_id=workspace.pk, action=action, state="RUNNING", step=step)
    page = sign_in("mina")
    live(page)
    Attempt.objects.filter(pk=run.pk).update(bytes_done=100 * MIB, bytes_total=400 * MIB, result={"step_seconds": 20})
    expect(card(page, workspace)).to_contain_text(re.compile(rf"{words}\s*100.0\sMB of 400.0\sMB, 1 min left"))


def test_no_card_is_stale_after_the_socket_was_away(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    made = list(fill(people["mina"], now=timezone.now()).values())
    page = sign_in("mina")
    live(page)
    page.context.set_offline(True)
    page.evaluate("codehub.dropSocket()")
    expect(page.locator("#connection")).to_be_visible()
    for workspace in made[:3]:
        observe(workspace, phase=Phase.ARCHIVED, desired_state=DesiredState.ARCHIVED, operation=Operation.NONE)
    observe(made[3], name="renamed meanwhile")
    gone = made[4]
    observe(gone, phase=Phase.DELETED, desired_state=DesiredState.DELETED, deleted_at=timezone.now())
    fresh = make(people["mina"], "new meanwhile", phase=Phase.STANDBY)
    page.context.set_offline(False)
    expect(page.locator("#connection")).to_be_hidden()
    expect(card(page, fresh)).to_be_visible()
    rows = Workspace.objects.visible().owned_by(people["mina"]).order_by("-created_at", "id")
    expected = [[str(row.pk), row.name, row.phase == Phase.ARCHIVED] for row in rows]
    shown = page.eval_on_selector_all(
        "article.card", "cards => cards.map(c => [c.id.slice(5), c.dataset.name, c.dataset.state === 'Archived'])"
    )
    assert shown == expected


def test_an_update_changes_one_card_of_many_and_nothing_else(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    made = [make(people["mina"], f"w{number}", phase=Phase.STANDBY) for number in range(300)]
    page = sign_in("mina")
    live(page)
    expect(page.locator("article.card")).to_have_count(24)
    target = made[-3]
    page.evaluate(
        """() => {
            window.touched = new Set();
            new MutationObserver((records) => {
                for (const record of records) {
                    const element = record.target.nodeType === 1 ? record.target : record.target.parentElement;
                    if (!element || element.closest("time")) continue;
                    window.touched.add(element.closest("article.card")?.id ?? element.closest("[id]")?.id ?? "page");
                }
            }).observe(document.getElementById("results"), {subtree: true, childList: true, attributes: true, characterData: true});
        }"""
    )
    before = page.evaluate("[...document.querySelectorAll('article.card')].map(c => JSON.stringify(c.getBoundingClientRect()))")
    observe(target, desired_state=DesiredState.ARCHIVED)
    expect(card(page, target)).to_contain_text("Asked to be archived")
    # One that is not on this page: nothing here may move.
    observe(made[0], name="far away")
    observe(target, operation=Operation.ARCHIVING, op_started_at=timezone.now())
    expect(card(page, target).locator(".state")).to_have_text("Archiving")
    assert page.evaluate("[...window.touched]") == [f"card-{target.pk}"]
    after = page.evaluate("[...document.querySelectorAll('article.card')].map(c => JSON.stringify(c.getBoundingClientRect()))")
    assert after == before
    page.get_by_role("link", name="Next").click()
    expect(page.locator(".pages")).to_contain_text("Page 2 of 13")


def test_everything_can_be_done_with_the_keyboard_alone(people: dict[str, User], open_browser: Callable[..., BrowserContext]) -> None:
    page = open_browser().new_page()
    page.goto("/login/")
    page.keyboard.type("mina")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/$"))
    live(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    tab_to(page, "New workspace")
    page.keyboard.press("Enter")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_text("“by keyboard” was created.")).to_be_visible()
    workspace = Workspace.objects.get()
    live(page)
    tab_to(page, "Stop")
    page.keyboard.press("Enter")
    expect(card(page, workspace)).to_contain_text("Asked to stop")
    # The pressed button is gone; the keyboard is still on the card.
    page.wait_for_function(f"document.activeElement.closest('article')?.id === 'card-{workspace.pk}'")
    page.keyboard.press("Tab")
    tab_to(page, "More actions for by keyboard")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    page.keyboard.press("Enter")
    tab_to(page, "Delete")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/delete/$"))
    tab_to(page, "confirm")
    page.keyboard.type("by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_text("is being deleted")).to_be_visible()
    tab_to(page, "mina")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/account/$"))
    tab_to(page, "Name")
    page.keyboard.type("made by keyboard")
    page.keyboard.press("Enter")
    expect(page.locator("#new-token")).to_be_visible()
    tab_to(page, "Revoke made by keyboard")
    page.keyboard.press("Enter")
    expect(page.get_by_text("made by keyboard")).to_have_count(0)
    tab_to(page, "Theme")
    page.keyboard.press("ArrowDown")
    tab_to(page, "Save")
    page.keyboard.press("Enter")
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    tab_to(page, "Sign out")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile(r"/login/"))


def test_an_open_menu_and_the_focus_survive_an_update(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    workspace = make(people["mina"], "steady", phase=Phase.RUNNING)
    page = sign_in("mina")
    live(page)
    card(page, workspace).locator("summary").click()
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.id")
    assert focused
    observe(workspace, name="renamed")
    expect(card(page, workspace).locator("h2")).to_have_text("renamed")
    assert page.evaluate("document.activeElement.id") == focused
    expect(card(page, workspace).locator(".menu-list")).to_be_visible()


def test_basics_work_without_scripts(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    page = sign_in("mina", java_script_enabled=False)
    page.click("text=New workspace")
    page.fill("#id_name", "plain")
    page.click("button:has-text('Create')")
    workspace = Workspace.objects.get()
    page.click(f"#stop-{workspace.pk}")
    workspace.refresh_from_db()
    assert workspace.desired_state == DesiredState.STANDBY
    assert "Asked to stop" in page.content()
    page.fill("#q", "nothing like this")
    page.press("#q", "Enter")
    assert "Nothing matches" in page.content()
    page.goto(f"/workspaces/{workspace.pk}/delete/")
    page.fill("#id_confirm", "plain")
    page.click("button:has-text('Delete for good')")
    workspace.refresh_from_db()
    assert workspace.deleted_at is not None


def test_search_and_filter_change_the_list_in_place_and_stay_live(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    made = fill(people["mina"], now=timezone.now())
    page = sign_in("mina")
    live(page)
    page.fill("#q", "docs")
    expect(page.locator("article.card")).to_have_count(1)
    page.wait_for_url(re.compile("q=docs"))
    page.fill("#q", "")
    page.select_option("#sort", "name")
    expect(page.locator("article.card h2").first).to_have_text("data-notebooks")
    page.select_option("#state", "archived")
    expect(page.locator("article.card")).to_have_count(1)
    live(page)
    observe(made["standby"], phase=Phase.ARCHIVED, desired_state=DesiredState.ARCHIVED)
    expect(page.locator("article.card")).to_have_count(2)


def test_news_of_the_list_before_never_replace_the_list_that_was_asked_for(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    made = fill(people["mina"], now=timezone.now())
    page = sign_in("mina")
    live(page)
    # As it is for a moment after a search: the answer stands on the page, the socket still tells of the former list.
    page.evaluate("document.getElementById('results').dataset.live = '/ws/dashboard/?lang=en&state=archived'")
    observe(made["standby"], phase=Phase.DELETED, desired_state=DesiredState.DELETED, deleted_at=timezone.now())
    expect(page.locator("article.card")).to_have_count(1)
    expect(card(page, made["archived"])).to_be_visible()


def test_signing_out_elsewhere_closes_the_page(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    one, two, phone = sign_in("mina"), sign_in("mina"), sign_in("mina", user_agent="Mozilla/5.0 (iPhone; like Mac OS X) Safari/604.1")
    for page in (one, two, phone):
        live(page)
    two.goto("/account/")
    assert UserSession.objects.filter(user=people["mina"]).count() == 3
    two.locator("tbody tr", has_text="iPhone").get_by_role("button", name="Sign out").click()
    phone.wait_for_url(re.compile("/login/"))
    expect(two.locator("tbody tr", has_text="iPhone")).to_have_count(0)
    expect(one.locator("html")).to_have_attribute("data-connection", "on")
    two.get_by_role("button", name="Sign out everywhere else").click()
    one.wait_for_url(re.compile("/login/"))
    expect(two.get_by_text("All other sessions have ended.")).to_be_visible()


def test_account_password_token_language_and_theme(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    page = sign_in("mina")
    page.goto("/account/")
    page.get_by_label("Name").fill("laptop")
    page.get_by_role("button", name="Create a token").click()
    secret = page.locator("#new-token").inner_text().strip()
    assert len(secret) > 30
    answer = page.request.get("/api/v1/me", headers={"Authorization": f"Bearer {secret}", "Cookie": ""})
    assert answer.status == 200
    page.goto("/account/")
    assert secret not in page.content()
    page.get_by_label("Name").fill("old laptop")
    page.get_by_role("button", name="Create a token").click()
    gone = page.locator("#new-token").inner_text().strip()
    page.get_by_role("button", name="Revoke old laptop").click()
    expect(page.get_by_role("button", name="Revoke old laptop")).to_have_count(0)
    assert page.request.get("/api/v1/me", headers={"Authorization": f"Bearer {gone}", "Cookie": ""}).status == 401
    page.get_by_label("Theme", exact=True).select_option("dark")
    page.locator("#preferences-language").select_option("ko")
    page.locator("form[action='/account/preferences/'] button").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    expect(page.locator("html")).to_have_attribute("lang", "ko")
    page.locator("footer button[value=en]").click()
    expect(page.locator("html")).to_have_attribute("lang", "en")
    page.get_by_label("Old password").fill(PASSWORD)
    page.get_by_label("New password", exact=True).fill("another long phrase 7")
    page.get_by_label("New password confirmation").fill("another long phrase 7")
    page.get_by_role("button", name="Change the password").click()
    expect(page.get_by_text("Your password is changed.")).to_be_visible()
    assert page.request.get("/api/v1/me", headers={"Authorization": f"Bearer {secret}", "Cookie": ""}).status == 401


def test_live_sockets_are_for_the_owner_alone(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    other = make(people["root"], "secret", phase=Phase.RUNNING)
    page = sign_in("mina")
    code = page.evaluate(
        """(path) => new Promise((done) => {
            const socket = new WebSocket(`ws://${location.host}${path}`);
            socket.onmessage = (event) => done(event.data);
            socket.onclose = (event) => done(event.code);
        })""",
        f"/ws/workspaces/{other.pk}/",
    )
    assert code == 1006


def test_timeline_why_and_logs_of_a_failed_start(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    made = fill(people["mina"], now=timezone.now())
    page = sign_in("mina")
    live(page)
    card(page, made["error"]).get_by_role("link", name="What happened").click()
    expect(page.get_by_text("listen EADDRINUSE")).to_be_visible()
    expect(page.get_by_text("Nothing, until an operator recovers it.")).to_be_visible()
    live(page)
    Workspace.objects.filter(pk=made["error"].pk).update(
        phase=Phase.STANDBY, error_reason=None, error_info=None, operation=Operation.STARTING, op_started_at=timezone.now()
    )
    expect(page.locator("#hero .state")).to_have_text("Starting")


def test_times_tick_in_the_readers_zone(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    workspace = make(people["mina"], "clock", phase=Phase.ARCHIVED)
    page = sign_in("mina")
    live(page)
    moment = card(page, workspace).locator(".line time[data-relative]").first
    first = moment.inner_text()
    expect(moment).not_to_have_text(first)
    clock = card(page, workspace).locator("time[data-clock]").first
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_char(phase_changed_at AT TIME ZONE 'Asia/Seoul', 'HH24:MI') FROM workspaces_workspace")
        expected = cursor.fetchone()[0]
    expect(clock).to_have_text(expected)


def test_the_savings_page_tells_hours_of_the_person_and_of_the_whole_site(people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    fill(people["mina"], now=timezone.now())
    make(people["root"], "own", phase=Phase.STANDBY)
    mina, root = sign_in("mina"), sign_in("root")
    mina.get_by_role("link", name="Savings").click()
    expect(mina.locator("svg rect").first).to_be_visible()
    expect(mina.locator("tbody tr")).to_have_count(14)
    expect(mina.get_by_label("Whose")).to_have_count(0)
    mina.get_by_label("Period").select_option(label="30 days")
    mina.get_by_role("button", name="Show").click()
    expect(mina.get_by_role("region", name="The numbers").locator("tbody tr")).to_have_count(30)
    root.goto("/savings/")
    root.get_by_label("Whose").select_option("site")
    root.get_by_role("button", name="Show").click()
    expect(root.get_by_role("region", name="By person")).to_contain_text("mina")


def test_the_first_administrator_is_made_with_the_token_of_the_servers_disk(
    people: dict[str, User], open_browser: Callable[..., BrowserContext]
) -> None:
    people["root"].delete()
    page = open_browser().new_page()
    page.goto("/")
    page.wait_for_url("**/welcome/")
    page.get_by_label("Setup token").fill("guessed")
    page.get_by_label("User name").fill("ada")
    page.get_by_label("Password").fill("a long phrase of my own")
    page.get_by_role("button", name="Create the administrator").click()
    expect(page.get_by_text("This is not the setup token.")).to_be_visible()
    page.get_by_label("Setup token").fill((settings.CONFIG.codehub_data_dir / "setup-token").read_text().strip())
    page.get_by_label("Password").fill("a long phrase of my own")
    page.get_by_role("button", name="Create the administrator").click()
    expect(page.get_by_role("link", name="Operators")).to_be_visible()
    page.goto("/welcome/")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is nothing here")
