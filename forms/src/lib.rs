//! Strict YAML files: values that know their places, and mistakes that are told with their lines.
