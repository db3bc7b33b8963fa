"""What people and CI call beside the walk: policy files, commands, the gate."""
