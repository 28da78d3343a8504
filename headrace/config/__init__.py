"""Configuration: flag over environment over YAML file over default. Pure core, one thin file that reads."""
