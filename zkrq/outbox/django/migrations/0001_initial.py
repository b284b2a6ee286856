"""Make the tables of the outbox and the inbox."""

from django.db import migrations

from zkrq.outbox.rows import CREATE, DROP


class Migration(migrations.Migration):
    """The first one."""

    initial = True
    dependencies = ()
    operations = (migrations.RunSQL(list(CREATE), list(DROP)),)
