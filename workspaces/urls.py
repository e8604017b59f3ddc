"""Addresses of our pages. The API, the admin and the workspaces' own traffic are wired elsewhere."""

from django.urls import path

from workspaces import views, views_account, views_entry, views_savings

urlpatterns = [
    path("", views.dashboard, name="dashboard"),
    path("workspaces/new/", views.create, name="workspace-new"),
    path("workspaces/<uuid:workspace_id>/", views.workspace_page, name="workspace"),
    path("workspaces/<uuid:workspace_id>/edit/", views.edit, name="workspace-edit"),
    path("workspaces/<uuid:workspace_id>/state/", views.change_state, name="workspace-state"),
    path("workspaces/<uuid:workspace_id>/keep-awake/", views.keep_awake, name="workspace-keep-awake"),
    path("workspaces/<uuid:workspace_id>/delete/", views.delete, name="workspace-delete"),
    path("savings/", views_savings.savings, name="savings"),
    path("account/", views_account.account, name="account"),
    path("account/password/", views_account.change_password, name="account-password"),
    path("account/preferences/", views_account.save_preferences, name="account-preferences"),
    path("account/tokens/", views_account.create_token, name="account-tokens"),
    path("account/tokens/<uuid:token_id>/revoke/", views_account.revoke_token, name="account-token-revoke"),
    path("account/sessions/end/", views_account.end_other_sessions, name="account-sessions-end"),
    path("account/sessions/<int:session_id>/end/", views_account.end_session, name="account-session-end"),
    path("login/", views_entry.SignInView.as_view(), name="login"),
    path("logout/", views_entry.SignOutView.as_view(), name="logout"),
    path("session/", views_entry.session_probe, name="session"),
    path("preferences/", views_entry.preferences, name="preferences"),
    path("invite/<str:uidb64>/<str:token>/", views_entry.invite, name="invite"),
    path("welcome/", views_entry.welcome, name="welcome"),
]
