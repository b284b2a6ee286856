"""Hold this process's claims: acquire, extend and settle them, under the right owner id."""
