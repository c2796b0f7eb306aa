"""How the processes of one job talk: frames, proof, channels, the roster's messages and addresses; no engine."""
