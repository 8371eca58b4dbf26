"""The filter server: pulls, answered through functions that the operator installed."""
