"""What every room uses: errors, events, ids, clock, checks, codecs, settings, tasks.  Nothing here knows a server."""
