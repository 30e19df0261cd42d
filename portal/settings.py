"""Settings of the portal, its commands and its workers. Everything tunable is an environment
variable with a row in docs/settings.md; names read only by the gateway live in gateway/config.py.
"""

from __future__ import annotations

from pathlib import Path

import environ
from django.core.exceptions import ImproperlyConfigured

from portal import env, logs, stores
from portal.admin_look import UNFOLD as UNFOLD

BASE_DIR = Path(__file__).resolve().parent.parent

PORTAL_ENV = env.text("PORTAL_ENV", "development")
if PORTAL_ENV not in {"development", "production"}:
    raise ImproperlyConfigured(f"PORTAL_ENV must be development or production, not {PORTAL_ENV!r}")
PRODUCTION = PORTAL_ENV == "production"
DEBUG = env.boolean("DEBUG", default=False)
DATA_DIR = Path(env.text("DATA_DIR", str(BASE_DIR / "var"))).resolve()

HOST = env.text("HOST", "127.0.0.1")
PORT = env.integer("PORT", 8000)
LOCAL_URL = f"http://{env.reachable(HOST)}:{PORT}"
PUBLIC_URL = env.text("PUBLIC_URL", LOCAL_URL).rstrip("/")
GATEWAY_URL = env.text("GATEWAY_URL", LOCAL_URL).rstrip("/")

SECRET_KEY = env.text("SECRET_KEY") or stores.secret_key(DATA_DIR)

# Stores: unset means the embedded ones, whose private sockets this process may find already
# running; nothing is started by importing settings.
DATABASE_URL = env.text("DATABASE_URL") or stores.postgres_url(DATA_DIR)
REDIS_URL = env.text("REDIS_URL") or stores.valkey_url(DATA_DIR)

EMBEDDED_DATABASE = not env.text("DATABASE_URL")
EMBEDDED_REDIS = not env.text("REDIS_URL")
ALLOW_EMBEDDED_STORES = env.boolean("ALLOW_EMBEDDED_STORES", default=False)

# The one-command setup: how many gateways share the port, where the portal listens for them, and
# an engine of one's own in place of the demo.
GATEWAY_PROCESSES = env.integer("GATEWAY_PROCESSES", 1)
PORTAL_SOCKET = env.text("PORTAL_SOCKET") or str(stores.run_dir(DATA_DIR) / "portal.sock")
ENGINE_URL = env.text("ENGINE_URL")
ENGINE_API_KEY = env.text("ENGINE_API_KEY")  # what that engine asks of its callers
ENGINE_SLOTS = env.integer("ENGINE_SLOTS", 0)
ENGINE_KIND = env.text("ENGINE_KIND")
ENGINE_HOSTS = env.names("ENGINE_HOSTS")

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
    "drf_standardized_errors",
    "import_export",
    "pgtrigger",
    "pghistory",
    "pghistory.admin",
    "rest_framework",
    "csp",
    "quotas",
    "portal",
    "portal.accounts",
    "portal.announcements",
    "portal.files",
    "portal.batches",
    "gateway",
]
AUTH_USER_MODEL = "quotas.User"
PGHISTORY_ADMIN_CLASS = "quotas.admin.usage.AuditAdmin"

MIDDLEWARE = [
    "portal.middleware.RequestId",
    "django.middleware.security.SecurityMiddleware",
    "portal.middleware.StaticFiles",
    "portal.middleware.ContentSecurityPolicy",
    "portal.middleware.BrowserHeaders",
    "portal.middleware.Compression",
    "django.middleware.http.ConditionalGetMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.accounts.first_password.FirstPassword",
    "portal.accounts.seeing.SeeAs",
    "portal.status.access.MembersOnly",
    "portal.middleware.PersonalSettings",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
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
                "portal.context.every_page",
            ],
        },
    },
]

# Who runs this installation; shown on every page.
INSTITUTE_NAME = env.text("INSTITUTE_NAME")
CONTACT_EMAIL = env.text("CONTACT_EMAIL")

KEYS_PER_PERSON = env.integer("KEYS_PER_PERSON", 20)
KEY_LONGEST_DAYS = env.integer("KEY_LONGEST_DAYS", 365)

# Sign-in: local accounts always, OpenID Connect when it is configured. The backend
# includes Django's, hashes once whoever is asked for, and so takes equally long for a name that
# nobody has.
AUTHENTICATION_BACKENDS = ["portal.accounts.backends.OneHash"]
CSRF_FAILURE_VIEW = "portal.errors.csrf_failure"
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
ACCOUNT_ADAPTER = "portal.accounts.adapters.LocalAccounts"
ACCOUNT_FORMS = {
    "login": "portal.accounts.forms.SignIn",
    "change_password": "portal.accounts.forms.ChangePassword",
}
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "username*", "password1*", "password2*"]
ACCOUNT_PREVENT_ENUMERATION = True
ACCOUNT_EMAIL_VERIFICATION = "optional"
ACCOUNT_LOGOUT_REDIRECT_URL = "/status/"
ACCOUNT_RATE_LIMITS = {
    "login": env.text("LOGIN_RATE", "30/m/ip"),
    "login_failed": env.text("LOGIN_FAILED_RATE", "10/m/ip,5/5m/key"),
}
ACCOUNT_SESSION_REMEMBER = True
ACCOUNT_REAUTHENTICATION_REQUIRED = True
ACCOUNT_EMAIL_SUBJECT_PREFIX = "[Fairway] "
# The gateway (or the ingress in its place) discards what the client claims and writes its own.
ALLAUTH_TRUSTED_PROXY_COUNT = 1
STATUS_PUBLIC = env.boolean("STATUS_PUBLIC", default=True)
SIGN_UP_OPEN = env.boolean("SIGN_UP_OPEN", default=False)
SIGN_UP_DOMAINS = env.names("SIGN_UP_DOMAINS")
SIGN_UP_APPROVAL = env.boolean("SIGN_UP_APPROVAL", default=True)
MFA_SUPPORTED_TYPES = ["totp", "webauthn", "recovery_codes"]
MFA_PASSKEY_LOGIN_ENABLED = True
# Accounts are opened or approved by people, and many installations have no mail server.
MFA_ALLOW_UNVERIFIED_EMAIL = True
MFA_TOTP_ISSUER = "Fairway"
# A browser gives passkeys to https and to localhost only; development runs on the latter.
MFA_WEBAUTHN_ALLOW_INSECURE_ORIGIN = not PRODUCTION
# Kept off: it would write a row for every page and every live part.
USERSESSIONS_TRACK_ACTIVITY = False
SOCIALACCOUNT_ADAPTER = "portal.accounts.adapters.InstituteAccounts"
SOCIALACCOUNT_EMAIL_AUTHENTICATION = False
OIDC_SERVER_URL = env.text("OIDC_SERVER_URL")
OIDC_NAME = env.text("OIDC_NAME", INSTITUTE_NAME or "Institute")
OIDC_GROUP_CLAIM = env.text("OIDC_GROUP_CLAIM")
SOCIALACCOUNT_PROVIDERS = {
    "openid_connect": {
        "OAUTH_PKCE_ENABLED": True,
        "APPS": [
            {
                "provider_id": "institute",
                "name": OIDC_NAME,
                "client_id": env.text("OIDC_CLIENT_ID"),
                "secret": env.text("OIDC_CLIENT_SECRET"),
                "settings": {"server_url": OIDC_SERVER_URL},
            }
        ]
        if OIDC_SERVER_URL
        else [],
    }
}
SESSION_COOKIE_AGE = env.integer("SESSION_DAYS", 14) * 86400
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_HTTPONLY = True
CSRF_COOKIE_SAMESITE = "Lax"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {
        "NAME": "django.contrib.auth.password_validation.MinimumLengthValidator",
        "OPTIONS": {"min_length": 10},
    },
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]

# What the browser is told. Only the admin's theme gets more, and only under /admin/.
SELF, NONE = "'self'", "'none'"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF],
        "font-src": [SELF],
        "connect-src": [SELF],
        "manifest-src": [SELF],
        "form-action": [SELF, *([env.origin(OIDC_SERVER_URL)] if OIDC_SERVER_URL else [])],
        "base-uri": [NONE],
        "object-src": [NONE],
        "frame-ancestors": [NONE],
    }
}
ADMIN_POLICY = {
    "script-src": [SELF, "'unsafe-eval'"],
    "style-src": [SELF, "'unsafe-inline'"],
    "img-src": [SELF, "data:"],
}
X_FRAME_OPTIONS = "DENY"
SECURE_CONTENT_TYPE_NOSNIFF = True
SECURE_REFERRER_POLICY = "same-origin"
SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin"
# The portal listens on a private socket or port; the gateway or ingress writes this header.
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
HTTPS = PUBLIC_URL.startswith("https://")
if PRODUCTION:
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    SECURE_SSL_REDIRECT = env.boolean("HTTPS_REDIRECT", default=True)
    # An API client that speaks http has already sent its key: it gets an error, not a redirect.
    SECURE_REDIRECT_EXEMPT = [r"^v1/", r"^api/"]
    SECURE_HSTS_SECONDS = 365 * 86400
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    # Preloading is a decision about the institute's whole domain, not ours.
    SILENCED_SYSTEM_CHECKS = ["security.W021"]

EMAIL_FROM = env.text("EMAIL_FROM", "fairway@localhost")
DEFAULT_FROM_EMAIL = SERVER_EMAIL = EMAIL_FROM
vars().update(environ.Env.email_url_config(env.text("EMAIL_URL", "consolemail://")))

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "fairway:portal",
    },
    # For what each process may count again by itself, also while Redis is away.
    "process": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}
LOGGING = logs.config(level=env.text("LOG_LEVEL", "INFO"))

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.api.v1.authentication.ByKey",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_FILTER_BACKENDS": ["django_filters.rest_framework.DjangoFilterBackend"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "drf_standardized_errors.handler.exception_handler",
    "UNAUTHENTICATED_USER": "django.contrib.auth.models.AnonymousUser",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Fairway",
    "DESCRIPTION": "Keys, usage, limits and status of one shared card.",
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "portal.api.v1.errors_schema.add_errors",
    ],
}

LANGUAGE_CODE = "en"
# A language is offered once its texts in locale/ are whole; half a translation helps nobody.
LANGUAGES = [("en", "English")]
LOCALE_PATHS = [BASE_DIR / "locale"]
FORMAT_MODULE_PATH = ["portal.formats"]
TIME_ZONE = env.text("TIME_ZONE", "UTC")  # the reporting zone of quota days and usage pages
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
STATIC_ROOT = DATA_DIR / "static"
STORAGES = {
    # Files of batch users; another backend, such as django-storages' S3, is installed beside.
    "default": {
        "BACKEND": env.text("FILES_STORAGE", "django.core.files.storage.FileSystemStorage"),
        "OPTIONS": env.json("FILES_STORAGE_OPTIONS"),
    },
    "staticfiles": {
        "BACKEND": "whitenoise.storage.CompressedManifestStaticFilesStorage"
        if PRODUCTION
        else "django.contrib.staticfiles.storage.StaticFilesStorage"
    },
}
# Development serves files from where they lie; production serves what collectstatic hashed.
WHITENOISE_USE_FINDERS = WHITENOISE_AUTOREFRESH = not PRODUCTION
MEDIA_ROOT = DATA_DIR / "files"

# One setting for the user, two spellings for the libraries: Celery's transport takes only
# redis+socket:// for a socket where redis-py takes unix://.
CELERY_BROKER_URL = stores.celery_url(REDIS_URL)
CELERY_TIMEZONE = "UTC"
CELERY_TASK_ACKS_LATE = True
CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": env.integer("BROKER_VISIBILITY_S", 600)  # tasks are far shorter
}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# The one long task only watches over lines that are out; a blink of the broker must not break
# them off and cost them their age. A second wake-up of the same kind changes nothing.
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_TASK_IGNORE_RESULT = True
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"

# Files and batches.
BATCH_MAX_LINES = env.integer("BATCH_MAX_LINES", 50_000)
BATCH_MAX_BYTES = env.integer("BATCH_MAX_BYTES", 200 * 1024 * 1024)
BATCH_MAX_LINE_BYTES = env.integer("BATCH_MAX_LINE_BYTES", 8 * 1024 * 1024)
BATCH_WINDOW_MOST = env.integer("BATCH_WINDOW_MOST", 64)  # requests of one person at the gateway
BATCH_RUNNERS = env.integer("BATCH_RUNNERS", 1)  # worker processes that send lines at one time
BATCH_LEASE_S = env.integer("BATCH_LEASE_S", 10)
BATCH_STALLED_AFTER_S = env.integer("BATCH_STALLED_AFTER_S", 1800)
WEBHOOK_HOSTS = env.names("WEBHOOK_HOSTS")  # who may be told of a batch's end; none by default
FILE_RETENTION_DAYS = env.integer("FILE_RETENTION_DAYS", 30)
USAGE_RETENTION_MONTHS = env.integer("USAGE_RETENTION_MONTHS", 13)
CELERY_BEAT_SCHEDULE = {
    "accounts-end": {"task": "quotas.tasks.end_accounts", "schedule": 60.0},
    "exports": {"task": "portal.tasks.publish_exports", "schedule": 10.0},
    "quota-mails": {"task": "quotas.tasks.warn_of_quotas", "schedule": 300.0},
    "capacity-minutes": {"task": "quotas.tasks.keep_minutes", "schedule": 20.0},
    "capacity-decision": {"task": "quotas.tasks.decide_capacity", "schedule": 3600.0},
    "usage-partitions": {"task": "quotas.tasks.keep_partitions", "schedule": 3600.0},
    "key-reminders": {"task": "portal.keys.tasks.remind", "schedule": 3600.0},
    "batches-sweep": {"task": "portal.batches.tasks.sweep", "schedule": 10.0},
    "files-clean": {"task": "portal.batches.tasks.clean", "schedule": 3600.0},
}
