"""MLCommons Chakra's execution traces: training steps read and written, and schedules written, a file for each rank."""
