"""The client: producers and readers over the wire, nothing of the broker's."""
