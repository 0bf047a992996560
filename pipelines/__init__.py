"""What a person runs: flags become a frozen config, and the config becomes a pipeline."""
