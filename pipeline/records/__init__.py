"""What passes between rooms: frozen standard-library dataclasses and nothing else."""
