"""`make demo`: real models answer real requests through a real broker, and a worker is killed. Checks every answer."""
