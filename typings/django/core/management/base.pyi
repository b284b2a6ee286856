from argparse import ArgumentParser
from typing import Any

class _Output:
    def write(self, msg: str) -> None: ...

class BaseCommand:
    help: str
    stdout: _Output
    def add_arguments(self, parser: ArgumentParser) -> None: ...
    def handle(self, *args: Any, **options: Any) -> None: ...
