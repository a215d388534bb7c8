"""Who holds a job up."""
