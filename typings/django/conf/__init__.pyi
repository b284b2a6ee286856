class LazySettings:
    def configure(self, **options: object) -> None: ...

settings: LazySettings
