"""What is measured and warned of while a model trains."""
