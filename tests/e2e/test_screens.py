"""Every page in both themes, both languages and two widths: kept as pictures, and without a finding of axe-core."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from django.test import Client, RequestFactory
from django.utils import timezone, translation
from playwright.sync_api import BrowserContext, Page, Route

from tests.e2e.looking import Looks
from tests.e2e.scenes import fill
from tests.integration import admin_world as world
from workspaces import tokens, views_errors
from workspaces.models import Installation, UserProfile
from workspaces.views_entry import invite_path

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

languages = pytest.mark.parametrize("language", ["en", "ko"])


@languages
def test_pages_look_right_and_axe_finds_nothing(language: str, people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    mina = people["mina"]
    made = fill(mina, now=timezone.now())
    newcomer = User.objects.create_user("newcomer")
    for user in (mina, newcomer):
        UserProfile.objects.create(user=user, language=language)
    Installation.objects.update(runtime="docker")
    tokens.request_token(mina, name="laptop", days=30)
    phone = Client(HTTP_USER_AGENT="Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Safari/604.1", REMOTE_ADDR="203.0.113.9")
    phone.force_login(mina)
    phone.get("/account/")
    pages = {
        "filtered": "/?q=nothing-like-this",
        "new": "/workspaces/new/",
        "workspace": f"/workspaces/{made['running'].pk}/",
        "workspace-error": f"/workspaces/{made['error'].pk}/",
        "workspace-archived": f"/workspaces/{made['archived'].pk}/",
        "edit": f"/workspaces/{made['running'].pk}/edit/",
        "delete": f"/workspaces/{made['archived'].pk}/delete/",
        "savings": "/savings/",
        "account": "/account/",
        "missing": "/nothing/here/",
        "proxy-waiting": f"/w/{made['starting'].pk}/",
        "proxy-limit": f"/w/{made['standby'].pk}/",
        "proxy-restore": f"/w/{made['archived'].pk}/",
        "proxy-error": f"/w/{made['error'].pk}/",
    }
    looks = Looks(language)
    page = sign_in("mina", locale=language)
    looks.take(page, "dashboard")
    page.click(f"#more-{made['running'].pk}")
    looks.take(page, "menu")
    page.goto("/")
    page.click(".toolbar [data-dialog=create]")
    looks.take(page, "dialog", whole=False)
    for name, path in pages.items():
        page.goto(path)
        looks.take(page, name)
    looks.take(sign_in("newcomer", locale=language), "empty")
    assert looks.complaints == {}


def answer(html: str, route: Route) -> None:
    route.fulfill(body=html, content_type="text/html")


@languages
def test_pages_before_signing_in_look_right(
    language: str, people: dict[str, User], open_browser: Callable[..., BrowserContext], site: str
) -> None:
    looks = Looks(language)
    page = open_browser(locale=language).new_page()
    for name, path in {"login": "/login/", "invite": invite_path(people["mina"]), "invite-gone": "/invite/MQ/nonsense/"}.items():
        page.goto(path)
        looks.take(page, name)
    # What no visitor can bring about at will is rendered here and shown on this site's own address.
    request = RequestFactory().get("/")
    with translation.override(language):
        answers = {
            "error-400": views_errors.bad_request(request),
            "error-403": views_errors.permission_denied(request),
            "error-csrf": views_errors.csrf_failure(request),
            "error-500": views_errors.server_error(request),
        }
        made = {name: answer.content.decode() for name, answer in answers.items()}
        made["locked"] = render_to_string("registration/locked.html", {"cooloff_timedelta": timedelta(minutes=15)}, request=request)
    for name, html in made.items():
        page.route(f"{site}/{name}", partial(answer, html))
        page.goto(f"/{name}")
        looks.take(page, name)
    people["root"].delete()
    page.goto("/login/")
    page.wait_for_url("**/welcome/")
    looks.take(page, "welcome")
    assert looks.complaints == {}


@languages
def test_the_operators_desk_looks_right_and_axe_finds_nothing(language: str, people: dict[str, User], sign_in: Callable[..., Page]) -> None:
    made = world.realistic(people["mina"], copies=2)
    UserProfile.objects.create(user=people["root"], language=language)
    pages = {
        "index": "/admin/",
        "overview": "/admin/overview/",
        "list": "/admin/workspaces/workspace/",
        "broken": f"/admin/workspaces/workspace/{made[3].pk}/change/",
        "image": f"/admin/workspaces/image/{made[0].image_id}/change/",
        "images": "/admin/workspaces/image/",
        "users": "/admin/auth/user/",
        "invite": "/admin/auth/user/add/",
        "user": f"/admin/auth/user/{people['mina'].pk}/change/",
        "audit": "/admin/workspaces/auditevent/",
        "attempts": "/admin/workspaces/attempt/",
        "orphans": "/admin/workspaces/orphan/",
        "savings": "/savings/?whose=site",
    }
    looks = Looks(language)
    page = sign_in("root", locale=language)
    for name, path in pages.items():
        page.goto(path)
        looks.take(page, f"admin-{name}")
    for action in ("delete", "recover"):
        page.set_viewport_size({"width": 1440, "height": 900})
        page.goto("/admin/workspaces/workspace/?trouble=person")
        page.check("#action-toggle")
        page.select_option("select[name=action]", action)
        page.click("button[name=index]")
        looks.take(page, f"admin-confirm-{action}")
    page.click("button.ch-button--main")
    page.wait_for_selector(".ch-results")
    looks.take(page, "admin-results")
    assert looks.complaints == {}
