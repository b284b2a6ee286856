class Stat:
    version: int
    last_modified_zxid: int
    ephemeral_owner: int
