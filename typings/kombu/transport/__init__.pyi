TRANSPORT_ALIASES: dict[str, str]
