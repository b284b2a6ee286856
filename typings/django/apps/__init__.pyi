class AppConfig:
    name: str
    label: str
    verbose_name: str
