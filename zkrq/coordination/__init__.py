"""Who is alive, and which servers may be believed."""
