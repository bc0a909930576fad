"""The configuration: a YAML file in, validated frozen values out."""
