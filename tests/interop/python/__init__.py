"""The stories of the rows, told by our own client: a process of its own, as the Java and Go programs are."""
