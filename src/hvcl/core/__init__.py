"""What every room needs and what knows none of them: errors, configuration, names, safe files, random state."""
