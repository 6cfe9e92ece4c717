"""What methods that may keep data keep it in: reservoirs, episodes of tasks, the present task's examples."""
