"""Django's settings, derived from the typed configuration. No environment variable is read here directly."""

import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from codehub import config as config_module
from codehub.logs import logging_config

CONFIG = config_module.load()
BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = CONFIG.secret_key()
DEBUG = CONFIG.codehub_debug
ALLOWED_HOSTS = CONFIG.allowed_hosts
CSRF_TRUSTED_ORIGINS = CONFIG.csrf_trusted_origins

INSTALLED_APPS = [
    "daphne",
    "codehub.adminsite.OperatorsAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_filters",
    "django_htmx",
    "knox",
    "axes",
    "pgtrigger",
    "codehub",
    "workspaces",
    "coordinator",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "workspaces.middleware.PreferencesMiddleware",
    "workspaces.middleware.SessionSeenMiddleware",
    "workspaces.middleware.ContentPolicyMiddleware",
    "axes.middleware.AxesMiddleware",
]

ROOT_URLCONF = "codehub.urls"
ASGI_APPLICATION = "codehub.asgi.application"
WSGI_APPLICATION = "codehub.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "workspaces.middleware.page_context",
            ],
        },
    },
]


def database_from_url(url: str, *, pool_size: int = 0) -> dict[str, Any]:
    """A `DATABASES` entry. Without a pool the connection is the caller's own for as long as its thread lives."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    host = query.pop("host", "") or unquote(parts.hostname or "")
    options: dict[str, Any] = {
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 20000,
        **query,
    }
    if pool_size:
        options["pool"] = {"min_size": 1, "max_size": pool_size, "timeout": 10}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/") or "codehub",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or ""),
        # A pooled connection goes back after each request; an unpooled one stays with its thread.
        "CONN_MAX_AGE": 0 if pool_size else None,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": options,
    }


# The web process switches the pool on (codehub.asgi); workers and commands hold plain connections, because a pooled one
# that holds an advisory lock would go back to the pool with the lock.
DATABASES = {"default": database_from_url(CONFIG.database_url)}

REDIS_URL = CONFIG.redis_url
CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "codehub:cache",
        "OPTIONS": {"SOCKET_CONNECT_TIMEOUT": 3, "SOCKET_TIMEOUT": 5},
    }
}
CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}

AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "django.contrib.auth.backends.ModelBackend",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator"},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "/login/"

# Names of our own, so that cookies of other software on the same host are never mistaken for ours by the proxy.
SESSION_COOKIE_NAME = "codehub_session"
CSRF_COOKIE_NAME = "codehub_csrf"
LANGUAGE_COOKIE_NAME = "codehub_language"
SESSION_COOKIE_HTTPONLY = True
CSRF_COOKIE_HTTPONLY = False
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE = "Lax"
CSRF_FAILURE_VIEW = "workspaces.views_errors.csrf_failure"
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
if CONFIG.is_https:
    SESSION_COOKIE_SECURE = True
    CSRF_COOKIE_SECURE = True
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^healthz$", r"^readyz$", r"^metrics$"]
    if CONFIG.codehub_trusted_proxies:
        SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
DATA_UPLOAD_MAX_MEMORY_SIZE = CONFIG.api_max_body_bytes

AXES_FAILURE_LIMIT = CONFIG.login_failure_limit
AXES_COOLOFF_TIME = CONFIG.login_cooloff_seconds / 3600
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_CLIENT_IP_CALLABLE = "workspaces.access.client_address"
AXES_VERBOSE = False
AXES_LOCKOUT_TEMPLATE = "registration/locked.html"

LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("ko", "한국어")]
LOCALE_PATHS = [BASE_DIR / "locale"]
TIME_ZONE = "UTC"
USE_I18N = True
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = BASE_DIR / "staticfiles"
STATICFILES_DIRS = [BASE_DIR / "static"]
WHITENOISE_USE_FINDERS = True
# Without `collectstatic` (a clone that is simply run) the finders above serve the files.
warnings.filterwarnings("ignore", message="No directory at", category=UserWarning)
WHITENOISE_AUTOREFRESH = DEBUG

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DEFAULT_FROM_EMAIL = CONFIG.default_from_email
SERVER_EMAIL = CONFIG.default_from_email
ADMINS = [(address.split("@", maxsplit=1)[0], address) for address in CONFIG.admins]


def email_from_url(url: str) -> dict[str, Any]:
    """Django's mail settings for `smtp://`, `smtp+tls://` or `smtps://`; mail to the log when there is none."""
    if not url:
        return {"EMAIL_BACKEND": "django.core.mail.backends.console.EmailBackend"}
    parts = urlsplit(url)
    return {
        "EMAIL_BACKEND": "django.core.mail.backends.smtp.EmailBackend",
        "EMAIL_HOST": parts.hostname or "localhost",
        "EMAIL_PORT": parts.port or (465 if parts.scheme == "smtps" else 25),
        "EMAIL_HOST_USER": unquote(parts.username or ""),
        "EMAIL_HOST_PASSWORD": unquote(parts.password or ""),
        "EMAIL_USE_TLS": parts.scheme == "smtp+tls",
        "EMAIL_USE_SSL": parts.scheme == "smtps",
        "EMAIL_TIMEOUT": 10,
    }


globals().update(email_from_url(CONFIG.email_url))

REST_FRAMEWORK = {
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
}

SPECTACULAR_SETTINGS = {
    "TITLE": "CodeHub",
    "DESCRIPTION": "Workspaces, tokens and live events for scripts. Failures are `{detail, code}`; branch on `code`.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1/",
    "PREPROCESSING_HOOKS": [],
    "POSTPROCESSING_HOOKS": ["drf_spectacular.hooks.postprocess_schema_enums", "workspaces.api.schema.finish_document"],
    "ENUM_NAME_OVERRIDES": {
        "PhaseEnum": "workspaces.api.shapes.PHASES",
        "OperationEnum": "workspaces.api.shapes.OPERATIONS",
        "DesiredStateEnum": "workspaces.api.shapes.DESIRED_STATES",
        "WishEnum": "workspaces.api.shapes.WISHES",
        "ReasonEnum": "workspaces.api.shapes.REASONS",
    },
}

KNOX_TOKEN_MODEL = "knox.AuthToken"  # noqa: S105 (the name of a model)
REST_KNOX = {
    "TOKEN_TTL": timedelta(days=CONFIG.token_ttl_days),
    "AUTH_HEADER_PREFIX": "Bearer",
    "AUTO_REFRESH": False,
}

LOGGING_CONFIG = "logging.config.dictConfig"
LOGGING = logging_config(CONFIG.log_level, CONFIG.log_format)
