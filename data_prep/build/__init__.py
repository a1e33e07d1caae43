"""Builds datasets: tasks, units of work, assembly, estimates."""
