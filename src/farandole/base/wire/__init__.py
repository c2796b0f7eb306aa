"""Communication between the processes of a job: frames, handshake, channels, the roster's messages, and addresses."""
