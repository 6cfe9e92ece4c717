"""What every room needs and what knows none of them: errors, configuration, names, random state."""
