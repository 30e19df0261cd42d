from django.apps import AppConfig, apps


class QuotasConfig(AppConfig):
    name = "quotas"

    def ready(self) -> None:
        # The library is named after its table; administrators look for what it is to them.
        apps.get_app_config("pghistory").verbose_name = "Audit trail"
