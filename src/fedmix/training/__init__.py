"""How a federation trains: settings, draws, batches, local steps, the server's step, and the round
loop.
"""
