"""One loop that owns one store: requests in, replies, parked waits and appends out."""
