"""Where data goes: the payload, a rank's streams, frames in a pod's log, stores of files."""
