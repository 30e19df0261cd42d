"""Give the hours of usage their plural; nothing changes in the database."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("quotas", "0007_engine_keys")]

    operations = [
        migrations.AlterModelOptions(
            name="usagehour",
            options={"verbose_name": "hour of usage", "verbose_name_plural": "hours of usage"},
        ),
    ]
