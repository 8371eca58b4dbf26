"""A message broker that speaks the RocketMQ protocol."""
