"""The name server: which broker has which topic, told by brokers and asked by everyone."""
