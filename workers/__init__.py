"""What a Celery worker process adds to the kernel: its role and name, its pulse, its tasks."""
