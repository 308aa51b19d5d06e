"""Rooms of the replay stage: schedules out as files for load generators, and one load generator driven over arms."""
