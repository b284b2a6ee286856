from collections.abc import Mapping

from django.http import HttpResponse

class Client:
    def post(self, path: str, data: Mapping[str, str]) -> HttpResponse: ...
