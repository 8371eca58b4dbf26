"""Producers, consumers and administration over the wire; never reaches into a broker."""
