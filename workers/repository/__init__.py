"""Model repository: config.pbtxt, scanning, lifecycle."""
