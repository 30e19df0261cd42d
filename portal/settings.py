"""Settings of the portal, its commands and its workers. Everything tunable is an environment
variable with a row in docs/settings.md; names read only by the gateway live in gateway/config.py.
"""

from __future__ import annotations

from pathlib import Path

import environ
from django.core.exceptions import ImproperlyConfigured

from portal import env, stores

BASE_DIR = Path(__file__).resolve().parent.parent

PORTAL_ENV = env.text("PORTAL_ENV", "development")
if PORTAL_ENV not in {"development", "production"}:
    raise ImproperlyConfigured(f"PORTAL_ENV must be development or production, not {PORTAL_ENV!r}")
PRODUCTION = PORTAL_ENV == "production"
DEBUG = env.boolean("DEBUG", default=False)
DATA_DIR = Path(env.text("DATA_DIR", str(BASE_DIR / "var"))).resolve()

HOST = env.text("HOST", "127.0.0.1")
PORT = env.integer("PORT", 8000)
PUBLIC_URL = env.text("PUBLIC_URL", f"http://{HOST}:{PORT}").rstrip("/")
GATEWAY_URL = env.text("GATEWAY_URL", f"http://127.0.0.1:{PORT}").rstrip("/")

SECRET_KEY = env.text("SECRET_KEY") or stores.secret_key(DATA_DIR)

# Stores: unset means the embedded ones, whose private sockets this process may find already
# running; nothing is started by importing settings.
DATABASE_URL = env.text("DATABASE_URL") or stores.postgres_url(DATA_DIR)
REDIS_URL = env.text("REDIS_URL") or stores.valkey_url(DATA_DIR)

DATABASES = {"default": environ.Env.db_url_config(DATABASE_URL)}
DATABASES["default"].update(
    {
        "CONN_MAX_AGE": 0,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {
            **DATABASES["default"].get("OPTIONS", {}),
            "pool": {"min_size": 0, "max_size": env.integer("DATABASE_POOL", 8), "timeout": 10},
        },
    }
)

ALLOWED_HOSTS = env.names("ALLOWED_HOSTS", "*" if not PRODUCTION else "")
CSRF_TRUSTED_ORIGINS = [PUBLIC_URL, *env.names("CSRF_TRUSTED_ORIGINS")]

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "unfold.contrib.forms",
    "unfold.contrib.import_export",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django.contrib.humanize",
    "django.contrib.postgres",
    "allauth",
    "allauth.account",
    "allauth.mfa",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "allauth.usersessions",
    "django_celery_beat",
    "django_filters",
    "django_htmx",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "import_export",
    "pgtrigger",
    "pghistory",
    "pghistory.admin",
    "rest_framework",
    "csp",
    "quotas",
    "portal",
    "gateway",
]
AUTH_USER_MODEL = "quotas.User"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "allauth.usersessions.middleware.UserSessionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "pghistory.middleware.HistoryMiddleware",
]
ROOT_URLCONF = "portal.urls"
ASGI_APPLICATION = "portal.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
AUTHENTICATION_BACKENDS = [
    "django.contrib.auth.backends.ModelBackend",
    "allauth.account.auth_backends.AuthenticationBackend",
]

LANGUAGE_CODE = "en"
TIME_ZONE = env.text("TIME_ZONE", "UTC")  # the reporting zone of quota days and usage pages
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
STATIC_ROOT = DATA_DIR / "static"
MEDIA_ROOT = DATA_DIR / "files"

# One setting for the user, two spellings for the libraries: Celery's transport takes only
# redis+socket:// for a socket where redis-py takes unix://.
CELERY_BROKER_URL = stores.celery_url(REDIS_URL)
CELERY_TIMEZONE = "UTC"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 600}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
