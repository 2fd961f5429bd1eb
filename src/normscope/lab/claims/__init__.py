"""The claims by topic, two files each: NAME.toml has the texts, NAME.py the EXPERIMENT."""
