from collections.abc import Sequence

class RunSQL:
    def __init__(self, sql: Sequence[str], reverse_sql: Sequence[str]) -> None: ...

class Migration:
    initial: bool
    dependencies: Sequence[tuple[str, str]]
    operations: Sequence[RunSQL]
