"""What differs between Beam's runners."""
