"""The name server: which broker has which topic, rebuilt from what the brokers register."""
