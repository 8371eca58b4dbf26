"""Other people's programs, and ours as a black box: started, watched and stopped for tests and benches.

Nothing here imports hotfire. A peer is known by its processes, its ports and what it answers on the wire,
so that a test comparing two servers cannot lean on the inside of one of them.
"""
