from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

def path(route: str, view: Callable[[HttpRequest], HttpResponse]) -> object: ...
