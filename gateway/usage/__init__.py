"""Who used what: counted per answer, kept per day."""
